"""`ottla up`, `ottla server` and `ottla storage`: nodes as processes, started and stopped as people do it."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import psutil
import pytest

from ottla.embedded.properties import free_ports
from tests.cli.processes import LIMIT_S, ottla, running


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


def test_a_read_only_folder_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("a file, where a folder should be")
    done = ottla("up", "--port", "0", "--data", str(file))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


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


@pytest.mark.parametrize("line", ["listeners=nonsense", "node.id=x"])
def test_a_bad_properties_file_is_one_sentence(tmp_path: Path, line: str) -> None:
    name, _, value = line.partition("=")
    done = ottla("server", str(properties(tmp_path, **{name: value})))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert name in done.stderr or value in done.stderr


def test_three_brokers_serve_and_stop_together(tmp_path: Path) -> None:
    with running("up", "--port", "0", "--brokers", "3", "--data", str(tmp_path)) as (process, bootstrap):
        assert len(bootstrap.split(",")) == 3
        assert ottla("topics", "create", "orders", "-r", "3", bootstrap=bootstrap).returncode == 0
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    assert all((tmp_path / f"node-{number}" / ".kafka_cleanshutdown").exists() for number in (1, 2, 3))


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
