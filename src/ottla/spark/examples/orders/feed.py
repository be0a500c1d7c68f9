"""Makes the topics and sends orders, a second apart by their own clock: `python feed.py [BOOTSTRAP] [--orders N] [--first N]`."""

import argparse
import json
import os
from datetime import UTC, datetime, timedelta

from ottla import sync

TOPICS = ("orders", "revenue")
PRODUCTS = {"tea": 4.5, "coffee": 6.25, "honey": 9.0, "bread": 3.2}
START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
UNREADABLE_EVERY, WORTHLESS_EVERY = 100, 50


def order(number: int) -> bytes:
    if number % UNREADABLE_EVERY == 0:
        return b"not an order"
    product = list(PRODUCTS)[number % len(PRODUCTS)]
    row = {"order_id": number, "product": product, "quantity": number % 3 + 1, "price": PRODUCTS[product]}
    if number % WORTHLESS_EVERY == 0:
        row["quantity"] = 0
    return json.dumps(row | {"ordered_at": (START + timedelta(seconds=number)).isoformat()}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", nargs="?", default=os.environ.get("OTTLA_BOOTSTRAP", "localhost:9092"))
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    with sync.Admin(bootstrap_servers=given.bootstrap) as admin:
        for topic in TOPICS:
            if topic not in admin.list_topics():
                admin.create_topic(topic, 3, 1)
    with sync.Producer(bootstrap_servers=given.bootstrap) as producer:
        for number in range(given.first, given.first + given.orders):
            producer.send("orders", order(number), key=f"customer-{number % 20}".encode())
        producer.flush()
    print(f"{given.orders} records sent to orders")


if __name__ == "__main__":
    main()
