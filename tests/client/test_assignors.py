from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.assignors import BUILT_IN, Member, java_hash, read_sticky_user_data
from ottla.client.subscriptions import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.model.errors import ProtocolError
from ottla.model.ids import TopicPartition

TOPICS = ("a", "b", "c")
RACKS = ("r1", "r2", "r3")
FEW = settings(max_examples=30)  # a group is a large example; Java judges hundreds


def members_of(case) -> list[Member]:
    """[(id, instance id, topics, owned, generation)] as the leader of a group of `name` assignors sees it."""
    name, rows = case["assignor"], case["members"]
    made = []
    for row in rows:
        owned = tuple(TopicPartition(*each) for each in row["owned"])
        data = BUILT_IN[name]().user_data(owned, row["generation"])
        subscription = Subscription(tuple(row["topics"]), data, owned, row["generation"], row["rack"])
        made.append(Member(row["id"], row["instance"], subscription))
    return made


@st.composite
def cases(draw, assignor=None, racks=True):
    counts = draw(st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 6), min_size=1))
    same, racked = draw(st.booleans()), racks and draw(st.booleans())
    shared = draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    everything = [[topic, number] for topic, count in sorted(counts.items()) for number in range(count)]
    generation = draw(st.integers(1, 5))
    rows, left = [], draw(st.permutations(everything))
    for index in range(draw(st.integers(1, 6))):
        size = draw(st.integers(0, len(left)))
        joined = draw(st.booleans())
        owned, left = (sorted(left[:size]), left[size:]) if joined else ([], left)
        topics = shared if same else draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
        rows.append(
            {
                "id": f"member-{draw(st.integers(0, 9))}-{index}",
                "instance": f"i{index}" if draw(st.booleans()) else None,
                "topics": topics,
                "owned": [each for each in owned if each[0] in topics],
                "generation": generation if joined else -1,
                "rack": draw(st.sampled_from(RACKS)) if racked else None,
            }
        )
    places = {f"{topic} {number}": sorted(draw(st.sets(st.sampled_from(RACKS), max_size=2))) for topic, number in everything}
    return {
        "assignor": assignor or draw(st.sampled_from(sorted(BUILT_IN))),
        "counts": counts,
        "members": rows,
        "racks": places if racked else {},
    }


def assigned(case) -> dict[str, list[TopicPartition]]:
    racks = {TopicPartition(key.split()[0], int(key.split()[1])): frozenset(near) for key, near in case["racks"].items()}
    subscribed = {topic for row in case["members"] for topic in row["topics"]}
    counts = {topic: count for topic, count in case["counts"].items() if topic in subscribed}
    return BUILT_IN[case["assignor"]]().assign(counts, members_of(case), racks)


@FEW
@given(cases())
def test_nobody_shares_a_partition_and_nobody_gets_what_it_did_not_ask_for(case):
    result = assigned(case)
    topics = {row["id"]: row["topics"] for row in case["members"]}
    dealt = [partition for partitions in result.values() for partition in partitions]
    assert len(dealt) == len(set(dealt))
    assert set(result) == set(topics)
    for member, partitions in result.items():
        assert all(partition.topic in topics[member] for partition in partitions)


@FEW
@given(cases().filter(lambda case: case["assignor"] != "cooperative-sticky"))
def test_every_partition_that_somebody_wants_is_dealt(case):
    wanted = {topic for row in case["members"] for topic in row["topics"]}
    expected = {(topic, number) for topic, count in case["counts"].items() if topic in wanted for number in range(count)}
    assert {partition for partitions in assigned(case).values() for partition in partitions} == expected


def next_round(case):
    """The same group, each member owning what it was just given."""
    result = assigned(case)
    rows = [row | {"owned": [list(each) for each in result[row["id"]]], "generation": 9} for row in case["members"]]
    return case | {"members": rows}


@FEW
@given(cases(assignor="sticky", racks=False))  # with racks Java moves partitions again, and so do we: test_results_are_javas
def test_sticky_is_even_and_moves_nothing_in_a_group_that_is(case):
    topics = case["members"][0]["topics"]
    for row in case["members"]:
        row["topics"] = topics
        row["owned"] = [each for each in row["owned"] if each[0] in topics]
    result = assigned(case)
    sizes = [len(partitions) for partitions in result.values()]
    assert max(sizes) - min(sizes) <= 1
    again = assigned(next_round(case))
    assert {member: set(partitions) for member, partitions in again.items()} == {
        member: set(each) for member, each in result.items()
    }


@FEW
@given(cases(assignor="cooperative-sticky"))
def test_cooperative_gives_nothing_away_that_another_still_holds(case):
    result = assigned(case)
    holders = {tuple(each): row["id"] for row in case["members"] for each in row["owned"]}
    for member, partitions in result.items():
        for partition in partitions:
            assert holders.get(tuple(partition), member) == member


@FEW
@given(cases(assignor="cooperative-sticky", racks=False))
def test_cooperative_reaches_in_two_rounds_what_sticky_would(case):
    for _ in range(2):
        result = assigned(case)
        for row in case["members"]:
            row["owned"], row["generation"] = [list(each) for each in sorted(result[row["id"]])], row["generation"] + 7
        newest = max(row["generation"] for row in case["members"])
        for row in case["members"]:
            row["generation"] = newest
    wanted = {topic for row in case["members"] for topic in row["topics"]}
    expected = {(topic, number) for topic, count in case["counts"].items() if topic in wanted for number in range(count)}
    assert {partition for partitions in assigned(case).values() for partition in partitions} == expected


def test_range_gives_the_odd_ones_to_the_first():
    rows = [
        {"id": name, "instance": None, "topics": ["a", "b"], "owned": [], "generation": -1, "rack": None} for name in ("m2", "m1")
    ]
    result = assigned({"assignor": "range", "counts": {"a": 3, "b": 3}, "members": rows, "racks": {}})
    assert result == {"m1": [("a", 0), ("a", 1), ("b", 0), ("b", 1)], "m2": [("a", 2), ("b", 2)]}


def test_hash_is_javas():
    assert java_hash("") == 0
    assert java_hash("hello") == 99162322
    assert java_hash("\U0001f600") == 1772899


@given(
    st.lists(st.text(max_size=5), max_size=3),
    st.none() | st.binary(max_size=5),
    st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9)), max_size=5, unique=True),
    st.integers(-1, 9),
    st.none() | st.text(max_size=3),
)
def test_subscriptions_and_assignments_survive_the_wire(topics, data, owned, generation, rack):
    mine = Subscription(tuple(sorted(topics)), data, tuple(sorted(TopicPartition(*each) for each in owned)), generation, rack)
    assert decode_subscription(encode_subscription(mine)) == mine
    old = decode_subscription(encode_subscription(mine, 0))
    assert (old.topics, old.user_data, old.owned) == (mine.topics, data, ())
    assignment = Assignment(tuple(sorted(TopicPartition(*each) for each in owned)), data)
    assert decode_assignment(encode_assignment(assignment)) == assignment


def test_newer_versions_are_read_as_far_as_they_are_known_and_garbage_is_refused():
    blob = encode_subscription(Subscription(("a",)))
    assert decode_subscription(b"\x00\x09" + blob[2:] + b"more").topics == ("a",)
    for garbage in (b"", b"\x00", b"\xff\xff", b"\x00\x01\x00\x00\x00\x09"):
        with pytest.raises(ProtocolError):
            decode_subscription(garbage)


@given(st.binary(max_size=30))
def test_sticky_user_data_that_cannot_be_read_counts_for_nothing(data):
    owned, generation = read_sticky_user_data(data)
    assert isinstance(owned, list)
    assert isinstance(generation, int)


JAVA = r"""
import com.fasterxml.jackson.databind.*;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.common.*;

public class Assign {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            JsonNode test = mapper.readTree(lines.nextLine());
            Map<String, ConsumerPartitionAssignor> known = new HashMap<>();
            for (ConsumerPartitionAssignor each : List.of(new RangeAssignor(), new RoundRobinAssignor(), new StickyAssignor(), new CooperativeStickyAssignor()))
                known.put(each.name(), each);
            List<PartitionInfo> infos = new ArrayList<>();
            for (var entry : iterable(test.get("counts").fields()))
                for (int i = 0; i < entry.getValue().asInt(); i++) {
                    List<Node> nodes = new ArrayList<>();
                    JsonNode near = test.get("racks").get(entry.getKey() + " " + i);
                    if (near != null) near.forEach(r -> nodes.add(new Node(Integer.parseInt(r.asText().substring(1)), "h", 1, r.asText())));
                    Node[] replicas = nodes.toArray(new Node[0]);
                    infos.add(new PartitionInfo(entry.getKey(), i, null, replicas, replicas));
                }
            Map<String, Subscription> subscriptions = new HashMap<>();
            for (JsonNode row : test.get("members")) {
                List<String> topics = new ArrayList<>();
                row.get("topics").forEach(t -> topics.add(t.asText()));
                List<TopicPartition> owned = new ArrayList<>();
                row.get("owned").forEach(o -> owned.add(new TopicPartition(o.get(0).asText(), o.get(1).asInt())));
                ByteBuffer data = row.get("user_data").isNull() ? null : ByteBuffer.wrap(HexFormat.of().parseHex(row.get("user_data").asText()));
                Subscription subscription = new Subscription(topics, data, owned, row.get("generation").asInt(), Optional.ofNullable(row.get("rack").isNull() ? null : row.get("rack").asText()));
                if (!row.get("instance").isNull()) subscription.setGroupInstanceId(Optional.of(row.get("instance").asText()));
                subscriptions.put(row.get("id").asText(), subscription);
            }
            Cluster cluster = new Cluster("x", List.of(), infos, Set.of(), Set.of());
            var result = known.get(test.get("assignor").asText()).assign(cluster, new GroupSubscription(subscriptions)).groupAssignment();
            Map<String, List<List<Object>>> out = new TreeMap<>();
            result.forEach((member, assignment) -> {
                List<List<Object>> rows = new ArrayList<>();
                assignment.partitions().forEach(p -> rows.add(List.of(p.topic(), p.partition())));
                out.put(member, rows);
            });
            System.out.println(mapper.writeValueAsString(out));
        }
    }
    static <T> Iterable<T> iterable(Iterator<T> iterator) { return () -> iterator; }
}
"""


@pytest.mark.kafka
def test_results_are_javas(tmp_path: Path):
    """Kafka's own assignors, in a Java process, over the same groups."""
    from tests.compatibility.jars import class_path

    collected = []

    @settings(max_examples=400, database=None, derandomize=True)
    @given(cases())
    def collect(case):
        collected.append(json.loads(json.dumps(case)))

    collect()
    moved = 0
    for case in [case for case in collected if case["assignor"] == "sticky" and case["racks"]]:
        collected.append(following := json.loads(json.dumps(next_round(case))))
        moved += {each: set(own) for each, own in assigned(case).items()} != {
            each: set(own) for each, own in assigned(following).items()
        }
    assert moved, "no case with racks in which a second round moves anything: then this holds with racks, too"
    source = tmp_path / "Assign.java"
    source.write_text(JAVA)
    lines = []
    for case in collected:
        rows = [dict(row) for row in case["members"]]
        for row, member in zip(rows, members_of(case), strict=True):
            data = member.subscription.user_data
            row["user_data"] = None if data is None else data.hex()
        lines.append(json.dumps(case | {"members": rows}))
    run = subprocess.run(
        ["java", "-cp", class_path(), str(source)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    answers = [line for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(collected)
    for case, line in zip(collected, answers, strict=True):
        java = {member: sorted(map(tuple, partitions)) for member, partitions in json.loads(line).items()}
        ours = {member: sorted(map(tuple, partitions)) for member, partitions in assigned(case).items()}
        assert ours == java, case
