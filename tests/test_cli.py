"""The command line: what each command answers, its exit code, and one line for every trouble."""

import argparse
import io
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import kvviz
from kvviz.cli import main, options
from kvviz.cli.answer import Progress
from kvviz.cli.record import _save
from kvviz.cli.script import Script
from kvviz.memory.trace import Action, Events, Mark, Trace

MIB = 1 << 20
ROOT = Path(__file__).parents[1]


def saved(path: Path, keep: bool = False, capacity: int = 200 * MIB) -> str:
    """A run of 12 steps; `keep`: each leaves 8 MiB behind, and the last request does not fit."""
    a = kvviz.CachingAllocator(capacity)
    marks = []
    for k in range(12):
        large = a.malloc(30 * MIB)
        a.malloc(8 * MIB) if keep else a.free(a.malloc(8 * MIB))
        a.free(large)
        marks.append(Mark(len(a.trace), f"step {k}"))
    if keep:
        with pytest.raises(kvviz.OutOfMemory):
            a.malloc(150 * MIB)
    t = a.trace
    Trace(t.events, t.entry, marks, t.owners, t.stacks, "a test", [], t.about).save(path)
    return str(path)


@pytest.fixture
def good(tmp_path):
    return saved(tmp_path / "good.kvviz")


@pytest.fixture
def bad(tmp_path):
    return saved(tmp_path / "bad.kvviz", keep=True)


def trouble(capsys, *words: str) -> str:
    """The one line that a command which cannot work says."""
    assert main([*words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("kvviz: ") and err.count("\n") == 1 and err.endswith("\n")
    return err


def test_show_tells_peaks_marks_and_a_state(bad, capsys):
    trace = kvviz.load(bad)
    assert main(["show", bad]) == 0
    text = capsys.readouterr().out
    assert f"{len(trace)} events" in text and "step 11" in text and "out of memory 1 time" in text
    assert main(["show", bad, "--at", "5", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    state = trace.at(5)
    assert figures["state"]["event"] == 5 and figures["state"]["allocated"] == state.allocated
    assert figures["devices"][0]["peak_reserved"] == trace.peak_reserved
    assert figures["marks"][-1] == [trace.marks[-1].event, "step 11"]


def test_diagnose_finds_or_finds_nothing(good, bad, capsys):
    assert main(["diagnose", good]) == 0
    assert "No fault found" in capsys.readouterr().out
    assert main(["diagnose", bad, "--setting", "expandable_segments:True", "--json"]) == 1
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err == "" and told["findings"] and told["figures"]["out_of_memory_at"] == len(kvviz.load(bad)) - 1
    assert {t["conf"] for t in told["figures"]["tried"]} <= {"", None, "expandable_segments:True"}


def test_diagnose_on_a_smaller_device(good, capsys):
    assert main(["diagnose", good, "--capacity", "35MiB", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["figures"]["out_of_memory_at"] is not None


def test_compare(good, bad, capsys):
    assert main(["compare", good, good]) == 0
    assert "No difference" in capsys.readouterr().out
    assert main(["compare", good, bad]) == 1
    assert "peak allocated" in capsys.readouterr().out


def test_replay_is_a_table_of_settings(good, bad, capsys):
    settings = ["--setting", "", "--setting", "expandable_segments:True"]
    assert main(["replay", good, *settings, "--json"]) == 0
    rows = {row["conf"]: row for row in json.loads(capsys.readouterr().out)["figures"]["replays"]}
    for conf, row in rows.items():
        again = kvviz.replay(kvviz.load(good), conf)
        assert (row["peak_reserved"], row["peak_allocated"]) == (again.peak_reserved, again.peak_allocated)
        assert row["ran_out"] is None
    assert set(rows) == {"", "expandable_segments:True"}
    assert main(["replay", good, "--capacity", "35MiB", "--setting", ""]) == 1
    lines = capsys.readouterr().out.splitlines()
    stopped = kvviz.replay(kvviz.load(good), capacity=35 * MIB).about["stopped_at"]
    assert lines[1].split()[0] == "setting" and int(lines[3].split()[-1]) == stopped


def test_a_request_that_failed_and_fails_again_is_out_of_memory(bad, capsys):
    """The recorded program went on after it, and so does the replay: its trace does not end there."""
    assert main(["replay", bad, "--setting", ""]) == 1
    assert int(capsys.readouterr().out.splitlines()[-1].split()[-1]) == len(kvviz.load(bad)) - 1
    assert main(["replay", bad, "--setting", "", "--capacity", "1GiB"]) == 0


def test_replay_saves_its_trace(good, tmp_path, capsys):
    out = tmp_path / "again.kvviz"
    assert main(["replay", good, "--setting", "expandable_segments:True", "--out", str(out)]) == 0
    assert kvviz.load(out).about["conf"] == "expandable_segments:True"
    capsys.readouterr()
    assert "give one --setting" in trouble(capsys, "replay", good, "--out", str(out))


@pytest.mark.parametrize("command", ["show", "diagnose", "compare", "replay"])
def test_a_page_needs_nothing_else(command, good, bad, tmp_path, capsys):
    page = tmp_path / "page.html"
    main([command, bad, *([good] if command == "compare" else []), "--html", str(page)])
    text = page.read_text()
    assert text.count("await boot(") == (1 if command == "compare" else 2) and text.count("<main>") == 1
    assert "<script src" not in text and "@import" not in text and 'href="http' not in text
    assert "prefers-color-scheme: dark" in text and 'class="report"' in text
    assert str(page) in capsys.readouterr().out


def test_a_page_does_not_replace_what_is_read(bad, capsys):
    before = Path(bad).read_bytes()
    assert "choose another name" in trouble(capsys, "diagnose", bad, "--html", bad)
    assert Path(bad).read_bytes() == before


def test_an_inconsistent_trace_is_shown_without_a_state(tmp_path, capsys):
    path, page = str(tmp_path / "odd.kvviz"), tmp_path / "odd.html"
    events = Events.of(2, action=[Action.SEGMENT_ALLOC, Action.ALLOC], address=[MIB, 9 * MIB], size=[2 * MIB, 512])
    Trace(events, about={"inconsistent": "blocks lie outside"}).save(path)
    assert main(["show", path]) == 0 and "no true one" in capsys.readouterr().out
    assert main(["show", path, "--html", str(page)]) == 0 and "No picture" in page.read_text()
    capsys.readouterr()
    assert main(["diagnose", path]) == 1
    capsys.readouterr()
    assert "blocks lie outside" in trouble(capsys, "show", path, "--at", "1")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "COMMAND"),
        (["shwo"], "shwo"),
        (["show"], "FILE"),
        (["show", "nothing.kvviz"], "nothing.kvviz: No such file"),
        (["show", "{good}", "--device", "7"], "no device 7"),
        (["show", "{good}", "--at", "100000"], "outside 0"),
        (["show", "{good}", "--js"], "--js"),
        (["show", "{good}", "--html", "/nowhere/x.html"], "cannot be written"),
        (["show", "{good}", "--html", ""], "an empty name is no file"),
        (["replay", "{good}", "--setting", "", "--out", ""], "an empty name is no file"),
        (["show", "{text}"], "neither a kvviz trace nor"),
        (["diagnose", "{good}", "--setting", "max_splitting:3"], "max_splitting"),
        (["replay", "{good}", "--setting", "max_splitting:3"], "max_splitting"),
        (["replay", "{good}", "--capacity", "24G"], "24G"),
        (["record"], "no script"),
        (["record", "-m"], "no module"),
        (["record", "nothing.py"], "nothing.py: No such file"),
        (["record", "--tokens", "3", "{text}"], "--tokens"),
        (["record", "--out", "/nowhere/x.kvviz", "{text}"], "cannot be written"),
        (["record", "--out", "{text}", "{text}"], "not replaced"),
        (["size"], "--layers"),
        (["size", "nothing"], "nothing: no such"),
    ],
)
def test_trouble_is_one_line(words, told, good, tmp_path, capsys):
    text = tmp_path / "some.py"
    text.write_text("raise SystemExit('this must not run')")
    words = [word.format(good=good, text=text) for word in words]
    assert told in trouble(capsys, *words)
    assert text.read_text().startswith("raise") and not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("command", ["show", "diagnose", "replay"])
def test_a_file_cannot_run_anything(command, tmp_path, capsys):
    path, proof = tmp_path / "evil.pickle", tmp_path / "proof"
    hostile = type("Hostile", (), {"__reduce__": lambda self: (os.system, (f"touch {proof}",))})()
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [hostile]}))
    assert "evil.pickle" in trouble(capsys, command, str(path))
    assert not proof.exists()


def test_names_in_a_file_do_not_steer_the_terminal(tmp_path, capsys):
    Trace(Events.of(1, action=[Action.SNAPSHOT]), marks=[Mark(0, "\x1b[2Jgone")]).save(tmp_path / "t.kvviz")
    assert main(["show", str(tmp_path / "t.kvviz")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "[2Jgone" in out


def test_size_by_numbers(capsys):
    words = [
        "size",
        "--layers",
        "32",
        "--kv-heads",
        "8",
        "--head-dim",
        "128",
        "--dtype",
        "bfloat16",
        "--tokens",
        "4090",
    ]
    assert main([*words, "--batch", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert figures["bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert figures["bytes"] == 2 * 4096 * figures["bytes_per_token"]  # whole pages of 16
    assert main([*words, "--fits", "512MiB"]) == 0 and main([*words, "--batch", "2", "--fits", "511MiB"]) == 1


def test_size_of_a_model(tmp_path, capsys):
    config = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    config["dtype"] = "float32"
    (tmp_path / "config.json").write_text(json.dumps(config))
    for place in (tmp_path, tmp_path / "config.json"):
        assert main(["size", str(place), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["figures"]["bytes_per_token"] == 4 * 2 * 2 * 64 * 4
    assert main(["size", "llama-3-8b", "--tokens", "1000", "--fits", "24GiB"]) == 0
    assert main(["size", "llama-3-8b", "--tokens", "1000", "--fits", "4GiB"]) == 1


@pytest.mark.parametrize(
    ("text", "bytes"), [("24GiB", 24 << 30), ("1.5 mib", 3 << 19), ("24GB", 24 * 10**9), ("512", 512), ("2KB", 2000)]
)
def test_sizes(text, bytes):
    assert options.size(text) == bytes


@pytest.mark.parametrize("text", ["24G", "1.5", "-3MiB", "GiB", ""])
def test_what_is_no_size(text):
    with pytest.raises(argparse.ArgumentTypeError, match="no size"):
        options.size(text)


def test_what_follows_the_script_is_the_scripts():
    assert options.split(["--out", "x", "a.py", "--device", "cuda"]) == (["--out", "x"], ["a.py", "--device", "cuda"])
    assert options.split(["--no-stacks", "-m", "pkg", "-m", "x"]) == (["--no-stacks"], ["-m", "pkg", "-m", "x"])
    assert options.split(["--device=cpu", "--", "a.py", "--"]) == (["--device=cpu"], ["a.py", "--"])


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_one_line_that_goes_away():
    stream = Terminal()
    progress = Progress(stream)
    progress("one")
    progress("two")
    progress.done()
    assert stream.getvalue() == "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[K"


def test_progress_without_a_terminal_waits_three_seconds():
    stream, times = io.StringIO(), iter([0.0, 1.0, 4.0])
    progress = Progress(stream, lambda: next(times))
    progress("early")
    progress("late")
    progress.done()
    assert stream.getvalue() == "kvviz: late\n"


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('bye')", 1, "bye"),
        ("def f(): return 1 / 0\nf()", 1, "ZeroDivisionError"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("x = (", 1, "SyntaxError"),
        ("import torch; k = torch.ones(300000)\nraise torch.OutOfMemoryError('no room')", 1, "kvviz: out of memory"),
    ],
)
def test_a_recording_is_saved_however_the_script_ends(source, code, told, tmp_path, capsys):
    script, out = tmp_path / "job.py", tmp_path / "job.kvviz"
    script.write_text(f"import torch\nkept = torch.ones({MIB})\n" + source)
    assert main(["record", "--device", "cpu", "--out", str(out), str(script)]) == code
    err = capsys.readouterr().err
    assert told in err and "kvviz: " + str(out) in err
    assert "runpy" not in err and "kvviz/cli" not in err
    trace = kvviz.load(out)
    if "SyntaxError" not in told:  # what the script holds in the end is still there
        assert trace.at(-1).requested - trace.at(0).requested >= 4 * MIB
    if "ZeroDivision" in told:
        assert err.startswith(f'Traceback (most recent call last):\n  File "{script}", line 4, in <module>\n')


def test_a_script_cannot_be_told_from_one_under_python(tmp_path):
    """argv, path, name, module and file as python sets them; the same for -m; a new name for each recording."""
    (tmp_path / "job.py").write_text(
        "import json, sys, other\n"
        "print(json.dumps([sys.argv, sys.path[0], __name__, __file__, sys.modules['__main__'].__name__, other.x]))\n"
        "sys.exit(5)\n"
    )
    (tmp_path / "other.py").write_text("x = 3\n")
    (tmp_path / "elsewhere").mkdir()
    for folder, words in ((tmp_path / "elsewhere", ["../job.py"]), (tmp_path, ["-m", "job"])):
        words += ["--out", "mine", "-m", "x"]
        kept = {"cwd": folder, "capture_output": True, "text": True, "env": os.environ | {"PYTHONPATH": str(ROOT)}}
        plain = subprocess.run([sys.executable, *words], **kept)
        ours = subprocess.run([sys.executable, "-m", "kvviz", "record", "--device", "cpu", *words], **kept)
        assert (ours.stdout, ours.returncode) == (plain.stdout, 5) and plain.stdout
        assert (folder / "job.kvviz").exists()


def test_an_earlier_recording_is_kept_and_the_new_one_diagnosed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text("import torch\nkept = torch.ones(9)\n")
    saved(tmp_path / "job.kvviz")
    assert main(["record", "--device", "cpu", "--diagnose", "job.py"]) == 0
    assert capsys.readouterr().out.startswith("Diagnosis: ")
    assert sorted(p.name for p in tmp_path.glob("*.kvviz")) == ["job-2.kvviz", "job.kvviz"]


def test_a_recording_names_weights_and_caches(tmp_path, capsys):
    """A script makes its model, and may import transformers, only while it runs."""
    out = tmp_path / "t.kvviz"
    (tmp_path / "job.py").write_text(
        "import torch\nfrom transformers import DynamicCache\nmodel = torch.nn.Linear(512, 512, bias=False)\n"
        "cache = DynamicCache()\ncache.update(torch.zeros(1, 2, 64, 16), torch.zeros(1, 2, 64, 16), 0)\n"
    )
    words = [sys.executable, "-m", "kvviz", "record", "--device", "cpu", "--out", str(out), "job.py"]
    subprocess.run(words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    assert main(["show", str(out), "--json"]) == 0
    owned = json.loads(capsys.readouterr().out)["figures"]["state"]["by_owner"]
    assert owned["weights"] == 512 * 512 * 4 and owned["kv cache"] == 2 * 2 * 64 * 16 * 4


def test_a_full_disk_loses_nothing(tmp_path, capsys):
    def save(trace, path):
        if path == "full.kvviz":
            raise OSError(28, "No space left on device")
        trace.save(path)

    place = _save(Trace(Events.of(3)), "full.kvviz", save)
    assert len(kvviz.load(place)) == 3 and "No space left" in capsys.readouterr().err


def test_nothing_of_the_script_is_left(tmp_path):
    (tmp_path / "job.py").write_text("import sys\nsys.argv.append('x')\nsys.path.insert(0, 'y')\n")
    before = list(sys.argv), list(sys.path), sys.modules["__main__"]
    Script.of([str(tmp_path / "job.py")]).run()
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_a_reader_that_leaves_ends_it_quietly(good):
    words = f"{sys.executable} -m kvviz show {good} --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("command", ["", "show", "diagnose", "compare", "replay", "record", "size"])
def test_help_is_short_and_has_an_example(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.count("example: kvviz ") == 1 and "exit codes:" in text
    assert len(text.splitlines()) <= 36 and max(map(len, text.splitlines())) <= 80


def test_help_by_itself_needs_no_torch():
    """The package kvviz imports torch when it is imported; the command line adds nothing heavy of its own."""
    program = (
        "import sys, types; package = types.ModuleType('kvviz'); package.__path__ = ['kvviz']; "
        "sys.modules['kvviz'] = package; from kvviz.cli import main; code = main(['diagnose', '--help']); "
        "sys.exit(code or sorted({'torch', 'numpy', 'plotly'} & {*sys.modules}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
