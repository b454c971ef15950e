"""Real Restate services and their process, run by the Python of an environment of their own."""

import asyncio
import sys
from datetime import timedelta
from typing import Any

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config
from pydantic import BaseModel, Field
from restate import Context, ObjectContext, ObjectSharedContext, WorkflowContext, WorkflowSharedContext
from restate.exceptions import TerminalError
from restate.serde import BytesSerde

LONG = timedelta(minutes=30)
ONE_ATTEMPT = restate.InvocationRetryPolicy(max_attempts=1, on_max_attempts="pause")
PATIENT = restate.InvocationRetryPolicy(initial_interval=timedelta(minutes=5))

orders = restate.Service("Orders", description="Takes orders.", metadata={"team": "tea"})
kettle = restate.VirtualObject("Kettle", description="One kettle for each key.")
approval = restate.Workflow("Approval")
ask = restate.Workflow("Ask")
hidden = restate.Service("Hidden", ingress_private=True)
forgetful = restate.Service("Forgetful", idempotency_retention=timedelta())


class Address(BaseModel):
    street: str


class Order(BaseModel):
    order_id: str = Field(description="What the customer calls it.")
    amount: float = 1.5
    address: Address | None = None


class Taken(BaseModel):
    order_id: str
    amount: float


class Boiled(BaseModel):
    kettle: str
    times: int


@orders.handler(metadata={"speed": "quick"})
async def place(ctx: Context, order: Order) -> Taken:
    """Take an order and say what became of it."""
    return Taken(order_id=order.order_id, amount=order.amount)


@orders.handler()
async def fail(ctx: Context, words: str) -> None:
    """Fails with the words that it is given, and a status that a proxy could have answered too."""
    raise TerminalError(words, status_code=404)


@orders.handler()
async def last(ctx: Context, seconds: float) -> str:
    await ctx.sleep(timedelta(seconds=seconds))
    return "done"


@orders.handler()
async def nothing(ctx: Context) -> None:
    pass


@orders.handler(invocation_retry_policy=ONE_ATTEMPT)
async def stumble(ctx: Context) -> None:
    raise RuntimeError("The kettle is empty.")


@orders.handler(invocation_retry_policy=PATIENT)
async def stagger(ctx: Context) -> None:
    raise RuntimeError("The kettle leaks.")


@orders.handler()
async def stubborn(ctx: Context) -> None:
    while True:
        try:
            await ctx.sleep(LONG)
        except TerminalError:
            continue


@orders.handler(content_type="text/plain", output_serde=BytesSerde())
async def say(ctx: Context, words: str) -> bytes:
    return words.encode()


@orders.handler(accept="application/octet-stream", input_serde=BytesSerde())
async def press(ctx: Context, leaves: bytes) -> None:
    pass


@orders.handler(ingress_private=True)
async def audit(ctx: Context) -> None:
    pass


@kettle.handler()
async def boil(ctx: ObjectContext, minutes: float) -> Boiled:
    times = (await ctx.get("times", type_hint=int) or 0) + 1
    ctx.set("times", times)
    if minutes:
        await ctx.sleep(timedelta(minutes=minutes))
    return Boiled(kettle=ctx.key(), times=times)


@kettle.handler()
async def explode(ctx: ObjectContext) -> None:
    raise TerminalError("The kettle exploded.")


@kettle.handler()
async def rename(ctx: ObjectContext, order: Order) -> str:
    return f"{ctx.key()} is {order.order_id}"


@kettle.handler(kind="shared")
async def times(ctx: ObjectSharedContext) -> int:
    """How often it was boiled."""
    return await ctx.get("times", type_hint=int) or 0


@approval.main()
async def run(ctx: WorkflowContext, order: Order) -> dict[str, str]:
    """Wait until somebody decides."""
    if order.amount < 0:
        raise TerminalError("Nobody can decide about less than nothing.")
    decision = "not needed" if order.amount == 0 else await ctx.promise("decision").value()
    ctx.set("stage", "decided")
    return {"order": order.order_id, "decision": decision}


@approval.handler()
async def decide(ctx: WorkflowSharedContext, decision: str) -> None:
    """Decide about the order."""
    if not decision:
        raise TerminalError("A decision has words.", status_code=500)
    await ctx.promise("decision").resolve(decision)


@approval.handler(metadata={"workflow-catalogue": "query"})
async def note(ctx: WorkflowSharedContext, words: str) -> str:
    """Notes something without an effect."""
    return words


@approval.handler()
async def stage(ctx: WorkflowSharedContext) -> str:
    """How far it is."""
    return await ctx.get("stage", type_hint=str) or "waiting"


@ask.main()
async def ask_run(ctx: WorkflowContext, order: Order) -> dict[str, Any]:
    """Asks whether the tea is good; for an amount below one it waits that many seconds."""
    approve = {"properties": {"approve": {"type": "boolean"}}, "required": ["approve"]}
    ctx.set("question", {"id": "good", "message": "Is the \u202etea good?", "schema": approve})
    patience = timedelta(seconds=order.amount) if order.amount < 1 else LONG
    told = await restate.select(answer=ctx.promise("told").value(), nobody=ctx.sleep(patience))
    ctx.clear("question")
    return {"told": told[1] if told[0] == "answer" else None}


@ask.handler(metadata={"workflow-catalogue": "answer"})
async def take(ctx: WorkflowSharedContext, told: dict[str, Any]) -> None:
    if not isinstance(told["answer"].get("approve"), bool):
        raise TerminalError("approve must be \u202etrue or false.", status_code=404)
    await ctx.promise("told").resolve(told["answer"])


@hidden.handler()
async def work(ctx: Context) -> None:
    pass


@forgetful.handler()
async def forget(ctx: Context) -> None:
    pass


async def main(port: str) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    await serve(restate.app([orders, kettle, approval, ask, hidden, forgetful]), config)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
