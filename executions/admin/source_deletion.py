"""Before sources are deleted: what that means for what they run."""

from catalogue.admin.sources import SourceAdmin
from catalogue.models import Source
from executions.models import Execution


def tell_of_executions(sources: list[Source]) -> str:
    """What is under way becomes unconfirmed with its workflow gone, though the engine goes on with it."""
    theirs = Execution.objects.filter(workflow__source__in=sources).order_by()
    active = theirs.active().count()
    others = theirs.count() - active
    followed = "execution is" if active == 1 else "executions are"
    parts = [
        f"{active:,} {followed} under way and will no longer be followed" if active else "",
        f"{others:,} {'stays' if others == 1 else 'stay'} on record" if others else "",
    ]
    told = "; ".join(filter(None, parts))
    return f"Executions: {told}." if told else ""


SourceAdmin.further_losses.append(tell_of_executions)
