"""Print DATABASE_URL=... and CELERY_BROKER_URL=... of the servers that this machine runs for tests.

Fails with a sentence for each that does not answer. Only loopback is tried, without passwords.
"""

import getpass
import os
import sys

import psycopg
import redis

POSTGRES = "127.0.0.1:5432"
REDIS = "redis://127.0.0.1:6379/15"


def main() -> None:
    problems = []
    database_url = find_postgres()
    if database_url is None:
        problems.append(f"PostgreSQL lets nobody in at {POSTGRES} without a password.")
    if not redis_answers():
        problems.append(f"Redis does not answer at {REDIS}.")
    if problems:
        sys.exit("\n".join(problems))
    print(f"DATABASE_URL={database_url}")
    print(f"CELERY_BROKER_URL={REDIS}")


def find_postgres() -> str | None:
    """The URL of a database of this run's own (tests make and drop it), for the first user let in."""
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


if __name__ == "__main__":
    main()
