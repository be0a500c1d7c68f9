"""Makes the topics and sends messages: `python feed.py [BOOTSTRAP] [--messages N] [--first N]`."""

import argparse
import json
import os

from ottla import sync

ABOUT = ("invoice", "refund", "crash", "lunch")
ROUTES = [f"{team}.{priority}" for team in ("billing", "support", "office") for priority in ("urgent", "normal", "bulk")]
UNREADABLE_EVERY = 50


def message(number: int) -> bytes:
    if number % UNREADABLE_EVERY == 0:
        return b"?"
    return json.dumps({"id": number, "about": ABOUT[number % len(ABOUT)], "text": "…", "urgency": number % 10}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    with sync.Admin(bootstrap_servers=given.bootstrap) as admin:
        present = admin.list_topics()
        for topic in ("messages", "messages-unreadable", *ROUTES):
            if topic not in present:
                admin.create_topic(topic, 2, 1)
    with sync.Producer(bootstrap_servers=given.bootstrap) as producer:
        for number in range(given.first, given.first + given.messages):
            producer.send("messages", message(number), key=f"sender-{number % 9}".encode())
        producer.flush()
    print(f"{given.messages} messages sent to messages")


if __name__ == "__main__":
    main()
