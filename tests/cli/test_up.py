"""`ottla up`, `ottla server` and `ottla storage`: nodes as processes, started and stopped as people do it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import psutil
import pytest

from ottla.embedded.properties import free_ports
from tests.cli.processes import LIMIT_S, ottla, running, start
from tests.compatibility.wire import wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_says_where_it_serves_and_a_signal_ends_it_with_zero(tmp_path: Path, number: signal.Signals) -> None:
    with running("up", "--port", "0", "--data", str(tmp_path)) as (process, bootstrap):
        assert (
            ottla("topics", "create", "orders", bootstrap=bootstrap).stdout
            == "created orders: 1 partitions, replication factor 1\n"
        )
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert (tmp_path / "node-1" / "orders-0" / "00000000000000000000.log").exists()


def test_data_is_there_after_a_restart(tmp_path: Path) -> None:
    for expected in ([], ["orders"]):
        with running("up", "--port", "0", "--data", str(tmp_path)) as (process, bootstrap):
            listed = ottla("topics", "list", "--json", bootstrap=bootstrap).stdout
            assert [name for name in ("orders",) if name in listed] == expected
            ottla("topics", "create", "orders", "--if-not-exists", bootstrap=bootstrap)
            process.terminate()
            assert process.wait(LIMIT_S) == 0


def test_a_second_node_on_the_same_folder_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--data", str(tmp_path)):
        second = ottla("up", "--port", "0", "--data", str(tmp_path))
    assert second.returncode == 1
    assert second.stdout == ""
    assert len(second.stderr.splitlines()) == 1
    assert second.stderr.startswith("ottla: ")
    assert str(tmp_path / "node-1") in second.stderr


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = ottla("up", "--port", str(taken.getsockname()[1]), "--data", str(tmp_path))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "in use" in done.stderr


def test_an_ephemeral_node_leaves_nothing(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--ephemeral") as (process, bootstrap):
        rows = ottla("topics", "create", "orders", bootstrap=bootstrap)
        assert rows.returncode == 0
        folder = ottla("cluster", "log-dirs", bootstrap=bootstrap).stdout.split()[-1]
        assert Path(folder).is_dir()
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("log.retention.hour=1", "did you mean 'log.retention.hours'?"),
        ("num.partitions=many", "num.partitions"),
        ("nonsense", "NAME=VALUE"),
    ],
)
def test_a_setting_that_cannot_be_is_named(tmp_path: Path, setting: str, why: str) -> None:
    done = ottla("up", "--port", "0", "--data", str(tmp_path), "--set", setting)
    assert done.returncode in (1, 2)
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_act(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--ephemeral", "--set", "num.partitions=5") as (_, bootstrap):
        assert "5 partitions" in ottla("topics", "create", "orders", bootstrap=bootstrap).stdout


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One sentence that says what and why, and 1."""
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("ottla: ")
    for word in words:
        assert word in done.stderr


def test_a_file_in_place_of_the_folder_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("a file, where a folder should be")
    assert_refused(ottla("up", "--port", "0", "--data", str(file)), str(file))


@pytest.mark.skipif(sys.platform != "linux", reason="needs prlimit")
@pytest.mark.parametrize("formatted", [False, True])
@pytest.mark.parametrize("size", [0, 10, 400])
def test_a_disk_that_takes_no_more_is_one_sentence(tmp_path: Path, formatted: bool, size: int) -> None:
    """The limit on the size of a file stands in for a full disk."""
    if formatted:
        with running("up", "--port", "0", "--data", str(tmp_path)):
            pass
    done = ottla("up", "--port", "0", "--data", str(tmp_path), before=("prlimit", f"--fsize={size}"))
    assert_refused(done, str(tmp_path / "node-1"), "File too large")
    with running("up", "--port", "0", "--data", str(tmp_path)) as (_, bootstrap):
        assert ottla("topics", "create", "orders", bootstrap=bootstrap).returncode == 0


@cache
def may_mount() -> bool:
    """In a namespace of its own a process may mount, unless the machine forbids that to its users."""
    return subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0


def mounted(script: str) -> tuple[str, ...]:
    """A command's beginning: in a mount namespace of its own, after what the script mounts."""
    return ("unshare", "-Urm", "sh", "-ec", f'{script}; exec "$@"', "sh")


@pytest.mark.skipif(sys.platform != "linux" or not may_mount(), reason="needs a mount namespace")
def test_a_read_only_folder_is_one_sentence(tmp_path: Path) -> None:
    """Even root, to whom the mode of a folder means nothing, cannot write to a disk that is mounted so."""
    read_only = mounted(f"mount --bind {tmp_path} {tmp_path}; mount -o remount,bind,ro {tmp_path}")
    assert_refused(ottla("up", "--port", "0", "--data", str(tmp_path), before=read_only), str(tmp_path), "Read-only")
    with running("up", "--port", "0", "--data", str(tmp_path)):
        pass
    assert_refused(ottla("up", "--port", "0", "--data", str(tmp_path), before=read_only), str(tmp_path), "Read-only")


@pytest.mark.skipif(sys.platform != "linux" or not may_mount(), reason="needs a mount namespace")
@pytest.mark.parametrize("pages", range(1, 6))
def test_a_small_disk_is_one_sentence_wherever_it_ends(tmp_path: Path, pages: int) -> None:
    small = mounted(f"mount -t tmpfs -o size={pages * resource.getpagesize()} none {tmp_path}")
    assert_refused(ottla("up", "--port", "0", "--data", str(tmp_path), before=small), str(tmp_path / "node-1"), "No space left")


def properties(tmp_path: Path, **more: str) -> Path:
    (controller,) = free_ports(1)
    lines = {
        "process.roles": "broker,controller",
        "node.id": "7",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"7@127.0.0.1:{controller}",
        "log.dirs": str(tmp_path / "data"),
    } | more
    file = tmp_path / "server.properties"
    file.write_text("# a comment\n" + "".join(f"{name} = {value}\n" for name, value in lines.items()))
    return file


def test_a_node_from_a_properties_file_is_formatted_and_served(tmp_path: Path) -> None:
    file = properties(tmp_path)
    refused = ottla("server", str(file))
    assert refused.returncode == 1
    assert "ottla storage format" in refused.stderr
    cluster_id = ottla("storage", "random-uuid").stdout.strip()
    unknown = ottla("storage", "format", str(file), "--cluster-id", cluster_id, "--feature", "group.version=7")
    assert unknown.returncode == 1
    assert "levels 0 to 1" in unknown.stderr
    voters = ottla("storage", "format", str(file), "--cluster-id", cluster_id, "--feature", "kraft.version=1")
    assert voters.returncode == 1
    assert "there is no feature 'kraft.version'" in voters.stderr
    chosen = ("--feature", "transaction.version=1")
    assert ottla("storage", "format", str(file), "--cluster-id", cluster_id, *chosen).returncode == 0
    again = ottla("storage", "format", str(file), "--cluster-id", cluster_id)
    assert again.returncode == 1
    assert "formatted already" in again.stderr
    assert ottla("storage", "format", str(file), "--cluster-id", cluster_id, "--ignore-formatted").returncode == 0
    with running("server", str(file)) as (_, bootstrap):
        described = ottla("cluster", "describe", "--json", bootstrap=bootstrap).stdout
        assert f'"cluster_id": "{cluster_id}"' in described
        assert '"broker": 7' in described
        features = json.loads(ottla("cluster", "features", "--json", bootstrap=bootstrap).stdout)
        levels = {row["feature"]: row["finalized"] for row in features}
        assert (levels["transaction.version"], levels["group.version"]) == (1, 1)


def test_a_node_that_waits_for_its_quorum_can_be_stopped(tmp_path: Path) -> None:
    own, other, third = free_ports(3)
    voters = f"7@127.0.0.1:{own},8@127.0.0.1:{other},9@127.0.0.1:{third}"
    listeners = f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{own}"
    file = properties(tmp_path, **{"controller.quorum.voters": voters, "listeners": listeners})
    cluster_id = ottla("storage", "random-uuid").stdout.strip()
    assert ottla("storage", "format", str(file), "--cluster-id", cluster_id).returncode == 0
    process = start("server", str(file))
    try:
        wait_until("its controller listens", lambda: takes_connections(own), alive=lambda: process.poll() is None)
        process.terminate()
        assert process.communicate(timeout=LIMIT_S) == ("", "")
        assert process.returncode == 0
        assert not (tmp_path / "data" / "node.pid").exists()
    finally:
        process.kill()


def takes_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_controller_and_a_broker_may_be_nodes_of_their_own(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    quorum = {"controller.quorum.voters": f"7@127.0.0.1:{port}"}
    own = {"process.roles": "controller", "listeners": f"CONTROLLER://127.0.0.1:{port}"}
    other = {"process.roles": "broker", "node.id": "8", "listeners": "PLAINTEXT://127.0.0.1:0"}
    cluster_id = ottla("storage", "random-uuid").stdout.strip()
    files = []
    for name, values in (("controller", own), ("broker", other)):
        (tmp_path / name).mkdir()
        files.append(str(properties(tmp_path / name, **quorum, **values)))
        assert ottla("storage", "format", files[-1], "--cluster-id", cluster_id).returncode == 0
    with running("server", files[0]) as (_, controller):
        assert controller == f"127.0.0.1:{port}"
        with running("server", files[1]) as (_, bootstrap):
            assert ottla("topics", "create", "t", bootstrap=bootstrap).returncode == 0
            assert "t" in ottla("topics", "list", bootstrap=bootstrap).stdout


@pytest.mark.parametrize("line", ["listeners=nonsense", "node.id=x", "replica.selector.class=com.example.Nearest"])
def test_a_bad_properties_file_is_one_sentence(tmp_path: Path, line: str) -> None:
    name, _, value = line.partition("=")
    done = ottla("server", str(properties(tmp_path, **{name: value})))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert name in done.stderr or value in done.stderr


@pytest.mark.parametrize("command", ["server", "storage format"])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        ("a folder", "Is a directory"),
        (b"node.id=1\n\xff\xfe\x00", "utf-8"),
        (b"node.id=\\uzzzz\n", "four hexadecimal digits"),
    ],
)
def test_properties_that_cannot_be_read_are_one_sentence(tmp_path: Path, command: str, content: object, why: str) -> None:
    file = tmp_path / "server.properties"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.mkdir()
    more = ("--cluster-id", "4L6g3nShT-eMCtK--X86sw") if command != "server" else ()
    assert_refused(ottla(*command.split(), str(file), *more), str(file), why)


@pytest.mark.parametrize("command", ["server", "storage format"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.dirs", "one,two"),
        ("listeners", "SSL://127.0.0.1:0,CONTROLLER://127.0.0.1:0"),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ],
)
def test_what_would_only_seem_to_be_honoured_is_refused(tmp_path: Path, command: str, name: str, value: str) -> None:
    file = properties(tmp_path, **{name: value, "controller.quorum.voters": ""})
    more = ("--cluster-id", "4L6g3nShT-eMCtK--X86sw") if command != "server" else ()
    assert_refused(ottla(*command.split(), str(file), *more), name)
    assert not (tmp_path / "data").exists()


def test_another_nodes_folder_is_refused(tmp_path: Path) -> None:
    format_folder = ("storage", "format", str(properties(tmp_path)), "--cluster-id", "4L6g3nShT-eMCtK--X86sw")
    assert ottla(*format_folder).returncode == 0
    another = properties(tmp_path, **{"node.id": "8", "controller.quorum.voters": ""})
    assert_refused(ottla("server", str(another)), str(tmp_path / "data"), "node.id", "7", "8")
    with running("server", str(properties(tmp_path))):
        pass


def test_three_brokers_serve_and_stop_together(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--brokers", "3", "--data", str(tmp_path)) as (process, bootstrap):
        assert len(bootstrap.split(",")) == 3
        assert ottla("topics", "create", "orders", "-r", "3", bootstrap=bootstrap).returncode == 0
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    assert all((tmp_path / f"node-{number}" / ".kafka_cleanshutdown").exists() for number in (1, 2, 3))


def consecutive_ports(count: int) -> int:
    """The first of so many ports in a row that are free."""
    for first in free_ports(50):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError(f"no {count} free ports in a row")


def pid_in(folder: Path) -> int:
    return int((folder / "node.pid").read_text())


def listeners(pid: int) -> set[int]:
    return {each.laddr.port for each in psutil.Process(pid).net_connections("tcp") if each.status == psutil.CONN_LISTEN}


def test_brokers_are_on_the_port_given_and_those_that_follow_and_each_folder_names_its_process(tmp_path: Path) -> None:
    first = consecutive_ports(3)
    with running("up", "--port", str(first), "--brokers", "3", "--data", str(tmp_path)) as (process, bootstrap):
        assert bootstrap == ",".join(f"127.0.0.1:{port}" for port in range(first, first + 3))
        pids = [pid_in(tmp_path / f"node-{number}") for number in (1, 2, 3)]
        assert sorted(pids) == sorted(child.pid for child in psutil.Process(process.pid).children())
        for port, pid in enumerate(pids, first):
            assert port in listeners(pid)
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    assert not list(tmp_path.rglob("node.pid"))


def test_a_broker_that_dies_is_reported_and_the_others_serve_on(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--brokers", "3", "--data", str(tmp_path)) as (process, bootstrap):
        assert ottla("topics", "create", "orders", "-p", "6", "-r", "3", bootstrap=bootstrap).returncode == 0
        os.kill(pid_in(tmp_path / "node-2"), signal.SIGKILL)
        values = [str(number) for number in range(60)]
        done = ottla("produce", "orders", "--set", "acks=all", stdin="\n".join(values), bootstrap=bootstrap)
        assert done.returncode == 0, done.stderr
        read = ottla("consume", "orders", "--from", "earliest", "--max", str(len(values)), bootstrap=bootstrap)
        assert sorted(read.stdout.split(), key=int) == values, read.stderr
        assert process.poll() is None
        process.terminate()
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
    assert [line for line in errors.splitlines() if line.startswith("ottla: ")] == ["ottla: node 2 ended; 2 of 3 nodes serve on"]


def test_the_command_ends_with_its_last_broker(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--brokers", "2", "--data", str(tmp_path)) as (process, _):
        for number in (2, 1):
            os.kill(pid_in(tmp_path / f"node-{number}"), signal.SIGKILL)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1
    assert [line for line in errors.splitlines() if line.startswith("ottla: ")][-1].endswith("0 of 2 nodes serve on")


def test_a_folder_of_one_broker_is_not_made_into_three(tmp_path: Path) -> None:
    """Two new voters could agree without the one that knows the topics."""
    (tmp_path / "node-1").mkdir()
    (tmp_path / "node-1" / "meta.properties").write_text("version=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\nnode.id=1\n")
    refused = ottla("up", "--port", "0", "--brokers", "3", "--data", str(tmp_path))
    assert refused.returncode == 1
    assert "holds a cluster of 1" in refused.stderr
    assert not (tmp_path / "node-2").exists()


def test_brokers_do_not_outlive_the_command_that_started_them(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--brokers", "2", "--data", str(tmp_path)) as (process, _):
        children = psutil.Process(process.pid).children()
        assert len(children) == 2
        process.kill()
        _, alive = psutil.wait_procs(children, timeout=LIMIT_S)
    assert not alive
