"""The transaction coordinator as a pure machine: `shard` decides and applies, `states` are its values, `records` its log."""
