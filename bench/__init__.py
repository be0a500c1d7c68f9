"""ottla beside Apache Kafka 4.3 on the same machine, with the same clients: `python -m bench`."""
