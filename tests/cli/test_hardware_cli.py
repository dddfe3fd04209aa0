"""`trainyard hardware`: a cluster in words, or as a file that describes the same cluster."""

from pathlib import Path

from trainyard.cli.main import main
from trainyard.hardware.parse import parse_cluster

CLUSTER = "2x4xV100-16G+1x2xA100-80G"


def test_a_cluster_is_told_in_words_or_as_a_file(tmp_path: Path, capsys):
    assert main(["hardware", CLUSTER]) == 0
    in_words = capsys.readouterr().out
    assert main(["hardware", CLUSTER, "--yaml"]) == 0
    file = tmp_path / "cluster.yaml"
    file.write_text(capsys.readouterr().out)
    read, written = parse_cluster(str(file)), parse_cluster(CLUSTER)
    assert read.nodes == written.nodes
    assert read.describe().splitlines()[1:] == written.describe().splitlines()[1:]
    assert in_words.strip() == written.describe().strip()
