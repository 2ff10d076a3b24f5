"""The command line: one line for a wrong argument, text for people, JSON for machines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from ngram_ref.lab import cli, demo
from ngram_ref.lab.tasks import PEOPLE_SCHEMA, Task
from ngram_ref.lab.viz.terminal import BRACKETS

DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def loaded(default_model, monkeypatch):
    """The default model in place of whatever is asked for; loading is tested elsewhere."""
    monkeypatch.setattr(cli, "load_model", lambda name, device, dtype: default_model)


def test_it_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "ngram_ref", "--help"], capture_output=True, text=True, check=True)
    for command in ("demo", "generate", "fetch-model"):
        assert command in done.stdout


@pytest.mark.parametrize("command", ["demo", "generate", "fetch-model"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: ngram-ref {command}" in capsys.readouterr().out


WRONG = {
    "no command": [],
    "unknown command": ["decode"],
    "unknown option": ["demo", "--fast"],
    "no prompt": ["generate"],
    "no number": ["demo", "--num-draft-tokens", "many"],
    "origins as JSON": ["generate", "--prompt", "A", "--origins", "--json"],
    "two grammars": ["generate", "--prompt", "A", "--regex", "a", "--ebnf", "b"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_command_line_gets_one_line_and_status_2(name, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(WRONG[name])
    assert caught.value.code == 2
    assert re.fullmatch(r"ngram-ref.*: .+ \(see ngram-ref.* --help\)\n", capsys.readouterr().err)


UNUSABLE = {
    "trees of no node": (["demo", "--num-draft-tokens", "0"], "num_draft_tokens must be at least 1"),
    "match type": (["generate", "--prompt", "A", "--match-type", "LIFO"], "match_type must be"),
    "missing model": (["generate", "--prompt", "A", "--model", "absent.gguf"], "there is no such GGUF file"),
    "missing schema": (["generate", "--prompt", "A", "--json-schema", "absent.json"], "absent.json"),
    "regex": (["generate", "--prompt", "A", "--regex", "[0-9"], "position 5"),
    "unenforced without a schema": (["generate", "--prompt", "A", "--allow-unenforced"], "needs --json-schema"),
    "unknown device": (["generate", "--prompt", "A", "--device", "abacus"], "device='abacus'"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_cannot_work_is_said_in_one_line_before_a_model_is_loaded(name, capsys):
    arguments, reason = UNUSABLE[name]
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reason in printed.err
    assert printed.err.count("\n") == 1


def test_a_schema_that_would_be_ignored_in_part_is_named(tmp_path: Path, capsys):
    path = tmp_path / "schema.json"
    path.write_text('{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}')
    assert cli.main(["generate", "--prompt", "A", "--json-schema", str(path)]) == 2
    assert "#/uniqueItems" in capsys.readouterr().err


@pytest.mark.model
def test_generate_prints_text_and_what_it_took(loaded, capsys):
    assert cli.main(["generate", "--prompt", "When did it begin?", "--regex", DATE]) == 0
    printed = capsys.readouterr()
    assert re.fullmatch(DATE + "\n", printed.out)
    assert re.fullmatch(r"-- 11 tokens, \d+ steps, accept length \d\.\d\d, ended by eos\n", printed.err)


@pytest.mark.model
def test_generate_prints_json_for_machines(loaded, tmp_path: Path, capsys):
    path = tmp_path / "grammar.ebnf"
    path.write_text('root ::= "yes" | "no"')
    arguments = ["generate", "--prompt", "Is it?", "--prompt", "Is it not?", "--ebnf", str(path), "--json"]
    assert cli.main(arguments) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["text"] in ("yes", "no") for record in records] == [True, True]
    for record in records:
        assert record["finish_reason"] == "eos"
        assert record["accept_length"] == pytest.approx(len(record["token_ids"]) / record["num_steps"])


@pytest.mark.model
def test_generate_marks_drafted_tokens(loaded, capsys):
    prompt = "Repeat: one two three four five six seven. one two three"
    assert cli.main(["generate", "--raw", "--prompt", prompt, "--max-new-tokens", "12", "--origins"]) == 0
    marked = capsys.readouterr().out
    assert cli.main(["generate", "--raw", "--prompt", prompt, "--max-new-tokens", "12"]) == 0
    assert "⟦" in marked
    assert re.sub("[⟦⟧]", "", marked) == capsys.readouterr().out


@pytest.mark.model
def test_a_schema_file_constrains_the_text(loaded, tmp_path: Path, capsys):
    path = tmp_path / "people.json"
    path.write_text(json.dumps(PEOPLE_SCHEMA))
    arguments = ["generate", "--prompt", "Anna, 34, a baker in Berlin.", "--json-schema", str(path), "--json"]
    assert cli.main([*arguments, "--max-new-tokens", "200"]) == 0
    (record,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert set(json.loads(record["text"])) == {"people"}


@pytest.mark.model
def test_the_demo_compares_three_ways_and_says_where_it_loses(default_model, monkeypatch):
    tasks = tuple(Task(task.name, task.prompt, 8) for task in demo.TASKS)
    monkeypatch.setattr(demo, "TASKS", tasks)
    monkeypatch.setattr(demo, "GRAMMAR_TASK", Task("JSON by schema", "Anna, 34, a baker in Berlin.", 8))
    model: PreTrainedModel = default_model[0]
    lines: list[str] = []
    demo.run_demo("the model", demo.Target(model), default_model[1], 12, lines.append, BRACKETS)
    page = "\n".join(lines)
    assert page.count("-- the same tokens as plain decoding") == len(tasks)
    assert "NOT valid" in page  # eight tokens do not make a list of people
    for task in tasks:
        assert re.search(
            rf"^{task.name} +\d+\.\d\d +\d+ +8( +\d+\.\d){{3}} +\d+\.\d\dx +\d+\.\d\dx$", page, re.MULTILINE
        )
    assert "N-gram trees lost here on: " in page


def test_the_demo_names_exactly_the_tasks_that_it_lost():
    def run(name: str, plain: float, lookup: float, trees: float) -> demo.TaskRun:
        rates = zip(demo.WAYS, (plain, lookup, trees), strict=True)
        measured = {way: demo.Measured([0] * 100, 100 / rate) for way, rate in rates}
        return demo.TaskRun(Task(name, "", 1), measured, None)

    won, lost_to_plain, lost_to_lookup = run("a", 1, 2, 3), run("b", 3, 1, 2), run("c", 1, 3, 2)
    assert "lost here on: no task." in demo.verdict([won])
    assert "lost here on: b, c." in demo.verdict([won, lost_to_plain, lost_to_lookup])


def test_a_cache_folder_that_cannot_be_made_is_named_with_the_cure(monkeypatch, capsys):
    monkeypatch.setenv("NGRAM_REF_CACHE", "/proc/no-such-folder")
    assert cli.main(["fetch-model"]) == 2
    printed = capsys.readouterr().err
    assert "NGRAM_REF_CACHE" in printed
    assert printed.count("\n") == 1
