"""Changes the title of one workflow after the other, one a second, until it is ended."""

import time
from itertools import count

import django


def main() -> None:
    django.setup()
    from catalogue.actions.workflows import override_workflow
    from catalogue.models import Workflow

    keys = list(Workflow.objects.order_by("pk").values_list("pk", flat=True))
    for number in count():
        workflow = Workflow.objects.select_related("source").get(pk=keys[number % len(keys)])
        override_workflow(workflow, title_override=f"Edition {number}")
        time.sleep(1)


if __name__ == "__main__":
    main()
