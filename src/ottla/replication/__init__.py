"""One partition's replication as pure machines: `leader` at the leader, `follower` at each follower, `state` their values."""
