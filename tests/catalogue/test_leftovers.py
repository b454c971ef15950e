"""Programs that connectors start end with the process that started them, whether they want to or not."""

import json
import os
import sys

import pytest

from catalogue.models import Source
from tests.connectors.test_hostile_mcp_programs import MARK, left_of
from tests.processes import ROOT, database_url, run_python

STUBBORN = "ignores SIGTERM and the end of its input"


@pytest.mark.django_db(transaction=True)
@pytest.mark.e2e
def test_nothing_of_a_stubborn_program_is_left_when_a_command_ends(tmp_path):
    """B6, B10: it was started for a listing, and would go on for an hour."""
    source = Source(name="stubborn", kind="mcp", config={"transport": "stdio", "command": "stubborn"})
    source.credentials = {}
    source.save()
    allowed = {"command": [sys.executable, "-m", MARK, STUBBORN, str(tmp_path)], "directory": str(ROOT)}
    environment = {
        "DATABASE_URL": database_url(),
        "CATALOGUE_STDIO_COMMANDS": json.dumps({"stubborn": allowed}),
    }
    outcome = run_python(["manage.py", "refresh_sources", "stubborn"], environment=os.environ | environment)
    assert outcome.returncode == 0, outcome.stderr
    assert source.workflows.count() == 1 and list(tmp_path.iterdir())
    assert not left_of(tmp_path)
