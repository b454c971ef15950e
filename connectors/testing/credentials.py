"""Credentials: wrong ones, and where none of them may show."""

from uuid import uuid4

import pytest

from connectors.errors import ConnectorError, Rejected
from connectors.protocol import Connector, RunState
from connectors.testing.harness import (
    EngineHarness,
    Sample,
    capabilities_of,
    closing,
    everything_told_by,
    start,
    unknown_run,
)


class Credentials:
    """Every method with wrong credentials, and all that is shown of right ones.

    An engine without credentials (`has_credentials`) has nothing to refuse and nothing to hide.
    """

    async def test_check_with_wrong_credentials_says_so_instead_of_raising(
        self, harness: EngineHarness
    ) -> None:
        """B9: an engine that refuses us is unhealthy, in words."""
        if not harness.has_credentials:
            return
        async with closing(harness.connector_with_wrong_credentials()) as intruder:
            health = await intruder.check()
        assert not health.ok
        assert health.message

    async def test_wrong_credentials_are_rejected_by_every_call(self, harness: EngineHarness) -> None:
        """A5.1, A5.2: a wrong key is told apart from an engine that is down."""
        if not harness.has_credentials:
            return
        async with closing(harness.connector_with_wrong_credentials()) as intruder:
            await refusal_of(intruder, harness.completing)
            if intruder.capabilities.keeps_runs:
                with pytest.raises(Rejected):
                    await intruder.poll(unknown_run(harness, harness.completing))
            if intruder.capabilities.lists_workflows:
                with pytest.raises(Rejected):
                    await anext(aiter(intruder.discover()))
            sample = harness.completing
            if capabilities_of(intruder, sample).can_find_runs:
                with pytest.raises(Rejected):
                    await intruder.find_run(sample.workflow, sample.arguments, key=uuid4())

    async def test_no_secret_shows_in_errors_logs_or_reprs(
        self,
        connector: Connector,
        harness: EngineHarness,
        log: list[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """E6, A5.1: credentials stay out of all that people and logs see."""
        if not harness.has_credentials:
            return
        shown = [repr(connector), str(connector), repr(vars(connector))]
        async with closing(harness.connector_with_wrong_credentials()) as intruder:
            shown += [repr(await intruder.check()), await refusal_of(intruder, harness.completing)]
        async with (
            harness.connector_without_answers() as mute,
            closing(harness.connector_to_nothing()) as gone,
        ):
            for bad in (mute, gone):
                with pytest.raises(ConnectorError) as caught:
                    await start(bad, harness.completing)
                shown.append(everything_told_by(caught.value))
        shown += [repr(await harness.ended(connector, harness.completing)), *log, caplog.text]
        assert harness.secrets, "the harness has to name its credentials"
        assert not [secret for secret in harness.secrets if secret in "\n".join(shown)]


async def refusal_of(connector: Connector, sample: Sample) -> str:
    """All output of a start with wrong credentials: an error, or the end of a run."""
    try:
        started, _ = await start(connector, sample)
    except Rejected as error:
        return everything_told_by(error)
    assert not connector.capabilities.keeps_runs, "a start was taken in spite of wrong credentials"
    assert started.snapshot is not None
    assert started.snapshot.state is RunState.FAILED
    assert started.snapshot.error
    return repr(started)
