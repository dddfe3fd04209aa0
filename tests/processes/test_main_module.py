"""Whether other processes may run the main module again."""

import subprocess
import sys

import pytest

ASK = "from trainyard.processes import can_run_again\nprint(can_run_again())\n"


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        ('if __name__ == "__main__":\n    pass\n', "True"),
        ("if '__main__' == __name__:\n    pass\n", "True"),
        ("", "False"),
        ("def main():\n    if __name__ == '__main__':\n        pass\n", "False"),
        ("# if __name__ == '__main__':\nif True:\n    pass\n", "False"),
    ],
)
def test_a_script_can_run_again_if_it_has_a_guard(before, answer, tmp_path):
    (tmp_path / "script.py").write_text(before + ASK)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert done.stdout == f"{answer}\n", done.stderr


@pytest.mark.parametrize("arguments", [("-",), ("-c", ASK)])
def test_what_is_no_file_cannot_run_again(arguments):
    done = subprocess.run([sys.executable, *arguments], input=ASK, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
