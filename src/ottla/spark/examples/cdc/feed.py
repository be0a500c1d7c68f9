"""Makes the topic and sends changes of accounts: `python feed.py [BOOTSTRAP] [--changes N] [--first N]`."""

import argparse
import json
import os

from ottla import sync

TOPIC = "account-changes"
CITIES = ("Ghent", "Lund", "Porto")
ACCOUNTS, CLOSED_EVERY = 40, 17


def change(number: int) -> tuple[str, bytes | None]:
    """An account, and what it is from now on; nothing, if it is closed."""
    account = f"account-{number * 7 % ACCOUNTS}"
    if number % CLOSED_EVERY == 0:
        return account, None
    row = {"owner": f"owner {number % 13}", "city": CITIES[number % len(CITIES)], "balance": number * 5 / 4}
    return account, json.dumps(row).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    with sync.Admin(bootstrap_servers=given.bootstrap) as admin:
        if TOPIC not in admin.list_topics():
            admin.create_topic(TOPIC, 3, 1, configs={"cleanup.policy": "compact"})
    with sync.Producer(bootstrap_servers=given.bootstrap) as producer:
        for number in range(given.first, given.first + given.changes):
            account, value = change(number)
            producer.send(TOPIC, value, key=account.encode())
        producer.flush()
    print(f"{given.changes} changes sent to {TOPIC}")


if __name__ == "__main__":
    main()
