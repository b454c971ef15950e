"""Counts the days between two dates."""

from collections.abc import Iterable
from datetime import date, timedelta
from itertools import groupby

from examples.engine.progress import Progress
from examples.engine.runs import JsonObject
from examples.engine.workflows.definition import ExecutionType, Workflow, WorkflowError
from examples.engine.workflows.schema import array, day, integer, record, text

MAX_DAYS = 36_600
SATURDAY = 5


def count_days(given: JsonObject, progress: Progress) -> JsonObject:
    start, end = date.fromisoformat(given["start"]), date.fromisoformat(given["end"])
    days = list_days(start, end)
    weekend = [day for day in days if is_weekend(day)]
    asked_off = {date.fromisoformat(holiday) for holiday in given.get("holidays", [])}
    holidays = sorted(asked_off.intersection(days).difference(weekend))
    return {
        "start": start.isoformat(),
        "end": end.isoformat(),
        "calendar_days": len(days),
        "business_days": len(days) - len(weekend) - len(holidays),
        "weekend_days": len(weekend),
        "holidays_on_weekdays": [holiday.isoformat() for holiday in holidays],
        "iso_weeks": list_weeks(days, {*weekend, *holidays}),
    }


def list_days(start: date, end: date) -> list[date]:
    length = (end - start).days + 1
    if length < 1:
        raise WorkflowError(f"The range ends on {end}, before it starts on {start}.")
    if length > MAX_DAYS:
        raise WorkflowError(f"The range has {length} days; at most {MAX_DAYS} (a century) are counted.")
    return [start + timedelta(days=offset) for offset in range(length)]


def is_weekend(moment: date) -> bool:
    return moment.weekday() >= SATURDAY


def list_weeks(days: Iterable[date], off: set[date]) -> list[JsonObject]:
    return [describe_week(week, list(members), off) for week, members in groupby(days, key=iso_week)]


def iso_week(moment: date) -> str:
    year, week, _ = moment.isocalendar()
    return f"{year:04}-W{week:02}"


def describe_week(week: str, days: list[date], off: set[date]) -> JsonObject:
    return {
        "week": week,
        "first_day": days[0].isoformat(),
        "last_day": days[-1].isoformat(),
        "business_days": sum(1 for moment in days if moment not in off),
    }


WORKFLOW = Workflow(
    id="1005",
    name="date_range",
    description=(
        "Counts the calendar days, business days and weekend days from one date to another, both included, "
        "and lists the ISO weeks they fall in. Use it to plan a project, compute a deadline's length or "
        "prorate a fee. Saturdays, Sundays and the holidays given are not business days; no country's "
        "holidays are built in. Returns the counts and the business days of each ISO week."
    ),
    category="Dates",
    execution_type=ExecutionType.SYNC,
    tags=("dates", "business days", "planning"),
    input_schema=record(
        "The range of dates.",
        {
            "start": day("The first day of the range."),
            "end": day("The last day of the range, not before the first."),
            "holidays": array("Days off besides weekends, in any order.", day("A holiday."), maxItems=10_000),
        },
        optional=["holidays"],
    ),
    output_schema=record(
        "What the range consists of.",
        {
            "start": day("The first day."),
            "end": day("The last day."),
            "calendar_days": integer("How many days the range has."),
            "business_days": integer("How many of them are neither weekend days nor holidays."),
            "weekend_days": integer("How many of them are Saturdays or Sundays."),
            "holidays_on_weekdays": array("The holidays that cost a business day.", day("A holiday.")),
            "iso_weeks": array(
                "The ISO 8601 weeks that the range touches.",
                record(
                    "The part of a week that is in the range.",
                    {
                        "week": text("The week, such as 2026-W01."),
                        "first_day": day("The first day in the range."),
                        "last_day": day("The last day in the range."),
                        "business_days": integer("How many business days it has in the range."),
                    },
                ),
            ),
        },
    ),
    example={"start": "2026-12-21", "end": "2027-01-03", "holidays": ["2026-12-25", "2027-01-01"]},
    execute=count_days,
)
