"""Print DATABASE_URL=... and CELERY_BROKER_URL=... of the servers that this machine runs for tests.

`find_services.py [postgres-redis | postgres-rabbitmq]`; the first is the default. Fails with a sentence for
each server that does not answer. Only loopback is tried, without passwords or with those that come installed.
"""

import getpass
import os
import sys
from collections.abc import Callable

import amqp
import psycopg
import redis

POSTGRES = "127.0.0.1:5432"
REDIS = "redis://127.0.0.1:6379/15"
RABBITMQ = "amqp://guest:guest@127.0.0.1:5672//"


def main() -> None:
    wanted = sys.argv[1] if len(sys.argv) > 1 else "postgres-redis"
    if wanted not in BROKERS:
        sys.exit(f"No such stack: {wanted}. Choose one of {', '.join(BROKERS)}.")
    broker, answers = BROKERS[wanted]
    problems = []
    database_url = find_postgres()
    if database_url is None:
        problems.append(f"PostgreSQL at {POSTGRES} allows no login without a password.")
    if not answers():
        problems.append(f"{broker} does not respond.")
    if problems:
        sys.exit("\n".join(problems))
    print(f"DATABASE_URL={database_url}")
    print(f"CELERY_BROKER_URL={broker}")


def find_postgres() -> str | None:
    """The URL of a database for this run (tests create and drop it), for the first user that can log in."""
    for user in (getpass.getuser(), "postgres"):
        server = f"postgresql://{user}@{POSTGRES}"
        try:
            psycopg.connect(f"{server}/postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            continue
        return f"{server}/catalogue_{os.getpid()}"
    return None


def redis_answers() -> bool:
    try:
        return bool(redis.Redis.from_url(REDIS, socket_timeout=5).ping())
    except redis.RedisError:
        return False


def rabbitmq_answers() -> bool:
    try:
        with amqp.Connection("127.0.0.1:5672", userid="guest", password="guest", connect_timeout=5):  # noqa: S106
            return True
    except (OSError, amqp.AMQPError):
        return False


BROKERS: dict[str, tuple[str, Callable[[], bool]]] = {
    "postgres-redis": (REDIS, redis_answers),
    "postgres-rabbitmq": (RABBITMQ, rabbitmq_answers),
}


if __name__ == "__main__":
    main()
