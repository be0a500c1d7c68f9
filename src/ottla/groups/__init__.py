"""Consumer groups and committed offsets: the coordinator of one `__consumer_offsets` partition as a pure machine.

shard              GroupShard: decide, expire, apply; dispatches requests to
classic            a classic group as a value, with its transition table;  classic_protocol: join, sync, heartbeat, leave
consumer           a KIP-848 group as a value;  consumer_protocol: the heartbeat;  reconcile;  assignors/;  regex
migration          from one protocol to the other with members in it;  classic_members: those of the classic protocol meanwhile;
                   embedded: what they put inside its opaque bytes;  working: a consumer group under a decision
offsets            the offset store; commit, fetch, delete, expire
listing            describe, list and delete groups of any type (group: what a type must offer)
records            Kafka's record formats and the group → partition hash
versions, replies  old and new forms of requests and replies; refusals
draft, context     what a decision is made of, and what it may know
"""
