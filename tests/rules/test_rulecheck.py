"""`fusewire check` on rules: what it accepts, and what it says against rules that could not stop a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fusewire_webhook.settings.rulecheck import check_loaded, check_rules
from fusewire_webhook.settings.rulefile import Problem
from fusewire_webhook.watch.prometheus import Rule, RuleGroup

RULES = Path(__file__).parents[2] / "rules"

GOOD = """
groups:
  - name: g
    interval: 1s
    rules:
      - record: mine:kl:three
        expr: max by (run, attempt) (last_over_time(rl_approx_kl_run_min{steps="3"}[4s]))
      - alert: Trip
        expr: mine:kl:three > 1 unless on (run, attempt) last_over_time(rl_phase_seconds[4s]) > 0
        keep_firing_for: 10m
        labels: {action: trip, class: divergence, severity: critical}
        annotations: {summary: s, description: d, runbook_url: "https://runbooks.example/Trip"}
"""

Check = Callable[..., list[Problem]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def run(text: str, *, scrape_seconds: float = 1.0) -> list[Problem]:
        path = tmp_path / "x.rules.yaml"
        path.write_text(text)
        return check_rules([path], scrape_seconds=scrape_seconds)

    return run


def with_expression(expression: str) -> str:
    return GOOD.replace(
        "mine:kl:three > 1 unless on (run, attempt) last_over_time(rl_phase_seconds[4s]) > 0", expression
    )


def test_the_default_pack_and_an_override_file_are_fit() -> None:
    """Nothing is wrong with the rules that come with fusewire, loaded together."""
    assert check_rules(sorted(RULES.glob("*.yaml")), scrape_seconds=1.0) == []


@pytest.mark.parametrize(("preset", "scrape_seconds"), [("demo", 0.25), ("literal", 1.0)])
def test_each_preset_is_fit(preset: str, scrape_seconds: float) -> None:
    """Nothing is wrong with a preset at the scrapes that it is made for."""
    assert check_rules([RULES / "presets" / f"{preset}.rules.yaml"], scrape_seconds=scrape_seconds) == []


def test_the_default_pack_at_slow_scrapes() -> None:
    """Files whose ranges one missed scrape in three would empty are errors, with the interval that fits."""
    files = [RULES / f"{name}.rules.yaml" for name in ("thresholds", "divergence", "infrastructure")]
    assert check_rules(files, scrape_seconds=1.3) == []
    problems = check_rules(files, scrape_seconds=10.0)
    assert [(problem.file, problem.severity) for problem in problems] == [(file, "error") for file in files[1:]]
    for problem, name in zip(problems, ["KLSpike", "TrainerStalled"], strict=True):
        assert name in problem.rule.split(", ")
        assert "ranges of 4 s" in problem.message
        assert "one scrape every 10 s" in problem.message
        assert "prometheus.scrape_interval_seconds to less than 1.33" in problem.remedy
        assert "more than 30 s" in problem.remedy


def test_what_a_running_prometheus_has_loaded_at_slow_scrapes() -> None:
    """The ranges of its rules are held against the configured scrapes; rules of others are none of our business."""
    rules = (
        Rule(
            kind="recording",
            name="mine:kl",
            query="max by (run, attempt) (last_over_time(rl_kl[4s]))",
            labels={},
            health="ok",
        ),
        Rule(kind="alerting", name="Trip", query="mine:kl > 1", labels={"action": "trip"}, health="ok"),
        Rule(kind="recording", name="node:load", query="avg_over_time(node_load1[1s])", labels={}, health="ok"),
        Rule(kind="alerting", name="New", query="a newer PromQL", labels={"action": "trip"}, health="ok"),
    )
    group = RuleGroup(name="g", file="/x.yaml", interval=1.0, evaluation_time=0.0, last_evaluation=0.0, rules=rules)
    assert check_loaded([group], scrape_seconds=1.0) == []
    (problem,) = check_loaded([group], scrape_seconds=10.0)
    assert str(problem).startswith("/x.yaml: mine:kl: ranges of 4 s are too little")


def test_good_rules_are_good(check: Check) -> None:
    """A rule that keeps the contract is not complained about."""
    assert check(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("action: trip", "action: trp", "did you mean trip?"),
        ("action: trip", "action: Trip", "did you mean trip?"),
        ("action: trip", "action: 3", "there are trip, hold, notify, watchdog"),
        ("class: divergence, ", "", "class"),
        ("class: divergence", "class: odd", "class"),
        (", severity: critical", "", "severity"),
        ("summary: s, ", "", "summary"),
        ("description: d, ", "", "description"),
        (', runbook_url: "https://runbooks.example/Trip"', "", "runbook_url"),
        ("        keep_firing_for: 10m\n", "", "keep_firing_for"),
        ("action: trip,", 'action: trip, attempt: "0",', "sets the label attempt"),
    ],
)
def test_a_broken_contract_is_an_error_that_names_the_rule(check: Check, old: str, new: str, word: str) -> None:
    """Each label and annotation of a trip rule is demanded, with the remedy."""
    assert old in GOOD
    (problem,) = check(GOOD.replace(old, new))
    assert problem.severity == "error"
    assert problem.rule == "Trip"
    assert word in str(problem)


@pytest.mark.parametrize(
    "expression",
    [
        "max(mine:kl:three) > 1",
        "max by (run) (mine:kl:three) > 1",
        "max without (attempt) (mine:kl:three) > 1",
        "mine:kl:three > on (run) mine:kl:three",
        "mine:kl:three > ignoring (run) mine:kl:three",
        "mine:kl:three > 1 or vector(1)",
        "absent(mine:kl:three)",
        "vector(1) > 0",
        'count_values by (run) ("v", mine:kl:three)',
        "max by (run) (mine:kl:three) > on (run) group_left () max by (run) (mine:kl:three)",
    ],
)
def test_an_expression_that_loses_run_or_attempt_is_an_error(check: Check, expression: str) -> None:
    """A trip without run and attempt could stop nobody, or somebody else."""
    (problem,) = check(with_expression(expression))
    assert problem.severity == "error"
    assert "loses the labels" in problem.message


@pytest.mark.parametrize(
    "expression",
    [
        "mine:kl:three > 1",
        "topk by (run) (1, mine:kl:three) > 1",
        "max without (instance) (mine:kl:three) > 1",
        "mine:kl:three > on (run, attempt) mine:kl:three",
        "mine:kl:three > on (run) group_left () max by (run) (mine:kl:three)",
        "max by (run) (mine:kl:three) < on (run) group_right () mine:kl:three",
        "2 * mine:kl:three > scalar(max(mine:kl:three))",
        "-abs(clamp_max(mine:kl:three, 3)) < 1 and on (run) mine:kl:three",
        'label_replace(mine:kl:three, "x", "$1", "run", "(.*)") > 1',
        "max_over_time(mine:kl:three[5m:10s]) > 1",
    ],
)
def test_an_expression_that_keeps_both_is_accepted(check: Check, expression: str) -> None:
    """What keeps run and attempt by PromQL's rules is not complained about."""
    assert check(with_expression(expression)) == []


def test_a_recording_rule_that_loses_a_label_is_found_behind_the_alert(check: Check) -> None:
    """Labels are followed through recording rules."""
    problems = check(GOOD.replace("max by (run, attempt) (", "max by (run) ("))
    assert [problem.rule for problem in problems] == ["Trip"]
    assert "attempt" in problems[0].message


def test_every_rule_of_a_record_counts(check: Check) -> None:
    """Where several rules make one series, the worst decides."""
    second = """
      - record: mine:kl:three
        labels: {kind: other}
        expr: max(last_over_time(rl_approx_kl_run_min[4s]))
      - alert: Trip"""
    problems = check(GOOD.replace("\n      - alert: Trip", second))
    assert "loses the labels attempt, run" in problems[0].message


def test_an_unknown_metric_is_named_with_the_nearest_known(check: Check) -> None:
    """A typo is an error with a proposal."""
    (problem,) = check(with_expression('last_over_time(rl_aprox_kl_run_min{steps="3"}[4s]) > 1'))
    assert "rl_aprox_kl_run_min" in problem.message
    assert problem.remedy == "did you mean rl_approx_kl_run_min?"


@pytest.mark.parametrize(
    ("expression", "severity", "words"),
    [
        ('last_over_time(rl_approx_kl_run_min{steps="5"}[4s]) > 1', "error", "take one of 1, 3, 10"),
        ('last_over_time(rl_approx_kl_run_max{steps=~"3|5"}[4s]) > 1', "error", '{steps="5"}'),
        ('last_over_time(rl_nonfinite_streak{signal="aprox_kl"}[4s]) > 1', "error", "did you mean approx_kl?"),
        ('last_over_time(rl_nonfinite_streak{signal=~"approx_kl|valeu_loss"}[4s]) > 1', "error", "value_loss?"),
        (
            'last_over_time(rl_nonfinite_streak{signal="zebra"}[4s]) > 1',
            "warning",
            "only if your trainer declares it",
        ),
    ],
)
def test_a_label_that_no_series_carries(check: Check, expression: str, severity: str, words: str) -> None:
    """A number of steps or a signal that does not exist is found: such a rule is silent for ever."""
    (problem,) = check(with_expression(expression))
    assert (problem.severity, words in str(problem)) == (severity, True)


@pytest.mark.parametrize(
    "matcher", ['signal="value_loss"', 'signal!="zebra"', 'signal=~".+_loss"', 'signal=~"value_loss|approx_kl"']
)
def test_labels_that_exist_or_exclude(check: Check, matcher: str) -> None:
    """A known signal, a true pattern and what a rule excludes are not complained about."""
    assert check(with_expression(f"last_over_time(rl_nonfinite_streak{{{matcher}}}[4s]) > 1")) == []


def test_a_signal_of_the_trainers_own_is_a_warning_until_it_is_declared(tmp_path: Path) -> None:
    """Users may declare signals; fusewire cannot know them all."""
    path = tmp_path / "x.rules.yaml"
    path.write_text(with_expression("last_over_time(rl_my_own_number_indeed[4s]) > 1"))
    (problem,) = check_rules([path])
    assert problem.severity == "warning"
    assert str(problem).startswith("warning: ")
    path.write_text(
        path.read_text().replace("rl_my_own_number_indeed", 'rl_nonfinite_streak{signal="my_own_number_indeed"}')
    )
    assert [one.severity for one in check_rules([path])] == ["warning"]
    assert check_rules([path], metrics={"rl_my_own_number_indeed"}) == []


def test_a_raw_gauge_is_an_error_in_trips_and_behind_them(check: Check) -> None:
    """One missed scrape must not silence a trip; of alerts that stop nothing it is a warning."""
    raw = GOOD.replace('last_over_time(rl_approx_kl_run_min{steps="3"}[4s])', 'rl_approx_kl_run_min{steps="3"}')
    (problem,) = check(raw)
    assert problem.rule == "mine:kl:three"
    assert (problem.severity, "last_over_time" in problem.remedy) == ("error", True)
    (problem,) = check(raw.replace("action: trip", "action: notify"))
    assert (problem.severity, problem.rule) == ("warning", "mine:kl:three")
    assert check(raw.replace("action: trip", "action: notify").replace("mine:kl:three > 1", "vector(1)")) == []
    foreign = GOOD.replace("mine:kl:three > 1", "node_load1 > 1").replace("action: trip", "action: notify")
    assert check(foreign) == []


def test_a_range_that_one_missed_scrape_in_three_would_empty_is_an_error(check: Check) -> None:
    """The range must be longer than three intervals of the group, and than three scrapes."""
    (problem,) = check(GOOD.replace('steps="3"}[4s]', 'steps="3"}[3s]'))
    assert "too little" in problem.message
    fast = GOOD.replace("interval: 1s", "interval: 250ms").replace("[4s]", "[1s]")
    assert check(fast, scrape_seconds=0.25) == []
    (problem,) = check(fast)
    assert "less than 0.333" in problem.remedy
    (problem,) = check(fast.replace("action: trip", "action: notify"))
    assert problem.severity == "warning"


def test_a_missing_runbook_is_an_error_where_runbooks_lie_and_a_warning_elsewhere(tmp_path: Path) -> None:
    """A relative runbook must exist beside the rules."""
    path = tmp_path / "rules" / "x.rules.yaml"
    path.parent.mkdir()
    path.write_text(GOOD.replace("https://runbooks.example/Trip", "docs/runbooks/Trip.md"))
    assert [problem.severity for problem in check_rules([path])] == ["warning"]
    runbook = tmp_path / "docs" / "runbooks" / "Trip.md"
    runbook.parent.mkdir(parents=True)
    assert [problem.severity for problem in check_rules([path])] == ["error"]
    runbook.write_text("# Trip")
    assert check_rules([path]) == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("groups: [", "yaml"),
        ("- 1", "rule"),
        (with_expression("max by (run (x)"), "parse error"),
        (GOOD.replace("alert: Trip", "alrt: Trip"), "alrt"),
    ],
)
def test_what_promtool_refuses_is_reported_and_other_files_still_checked(
    tmp_path: Path, text: str, word: str
) -> None:
    """A syntax error in one file does not hide what is wrong in another."""
    broken, other = tmp_path / "broken.rules.yaml", tmp_path / "other.rules.yaml"
    broken.write_text(text)
    other.write_text(GOOD.replace(", severity: critical", ""))
    problems = check_rules([broken, other])
    assert {problem.file for problem in problems} == {broken, other}
    assert any(word in str(problem).lower() for problem in problems if problem.file == broken)


def test_without_promtool_everything_else_is_still_checked(tmp_path: Path) -> None:
    """A missing promtool is a warning; the contract is checked all the same."""
    path = tmp_path / "x.rules.yaml"
    path.write_text(GOOD.replace(", severity: critical", ""))
    problems = check_rules([path], promtool="no-such-promtool")
    assert [problem.severity for problem in problems] == ["warning", "error"]


@pytest.mark.parametrize("promtool", ["promtool", "no-such-tool"])
@pytest.mark.parametrize(
    "content",
    [
        b"[]", b"a: &a [*a", b"\xff\xfe", b"groups: rules", b"groups: [1]", b"groups: [{name: g, rules: all}]",
        b"groups: [{name: g, rules: [1]}]", b"groups: [{name: g, interval: soon, rules: []}]",
        b"groups: [{name: g, rules: [{alert: A, expr: up, labels: [trip]}]}]",
        b"groups: [{name: g, rules: [{alert: A, expr: up, annotations: none}]}]",
        b"v: 2024-02-31", b"v: !!float abc", b"v: !!timestamp abc", b"v: !!int ''",
        pytest.param(b"[" * 1000, id="deep YAML"),
        pytest.param(
            b"groups: [{name: g, rules: [{record: a, expr: '" + b"(" * 1000 + b"1" + b")" * 1000 + b"'}]}]",
            id="deep PromQL",
        ),
    ],
)  # fmt: skip
def test_a_file_of_another_shape_is_a_problem_of_that_file(tmp_path: Path, content: bytes, promtool: str) -> None:
    """One sentence, with promtool and without: half an edit is no traceback."""
    path = tmp_path / "x.rules.yaml"
    path.write_bytes(content)
    problems = [one for one in check_rules([path], promtool=promtool) if one.severity == "error"]
    assert [problem.file for problem in problems] == [path]
    assert "\n" not in str(problems[0])


def test_a_missing_file_is_a_problem_of_that_file(tmp_path: Path) -> None:
    """A path that does not exist is named."""
    problems = check_rules([tmp_path / "none.yaml"])
    assert problems
    assert all(problem.file.name == "none.yaml" for problem in problems)


def overrides(folder: Path, *labels: str, expression: str = "vector(0.8)") -> Path:
    """A file with an override for each of these sets of labels."""
    path = folder / "mine.rules.yaml"
    rules = [f"{{record: 'fusewire:override', labels: {{{one}}}, expr: '{expression}'}}" for one in labels]
    path.write_text(f"groups: [{{name: mine, rules: [{', '.join(rules)}]}}]\n")
    return path


KL = "threshold: approx_kl"


def test_an_alert_with_a_class_that_asks_for_nothing_is_a_warning(check: Check) -> None:
    """It looks like a trip rule and stops nothing; an alert with neither is other people's."""
    (problem,) = check(GOOD.replace("action: trip, ", ""))
    assert (problem.severity, problem.remedy) == ("warning", "add the label action: trip")
    assert check(GOOD.replace("action: trip, class: divergence, ", "")) == []


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (
            ["threshold: return_colapse, run: a"],
            "return_colapse, so it does nothing; did you mean return_collapse?",
        ),
        (["threshold: zzz, run: a"], "there are approx_kl, "),
        (["run: a"], "names no threshold"),
        ([KL], "add the label run or algorithm"),
        ([f"{KL}, run: a", f"{KL}, run: a, algorithm: ppo"], "a second override of approx_kl for the run a "),
        ([f"{KL}, algorithm: ppo", f"{KL}, algorithm: ppo"], "for the algorithm ppo "),
    ],
)
def test_an_override_that_does_nothing_or_breaks_its_threshold(
    tmp_path: Path, labels: list[str], words: str
) -> None:
    """It is an error that names the file, the rule and what to do."""
    (problem,) = check_rules([RULES / "thresholds.rules.yaml", overrides(tmp_path, *labels)])
    assert problem.severity == "error"
    assert str(problem).startswith(f"{tmp_path / 'mine.rules.yaml'}: fusewire:override: ")
    assert words in str(problem)


@pytest.mark.parametrize("expression", ["vector(-1)", "-vector(1)", "vector(-(0.5))", "vector(NaN)"])
def test_an_override_by_which_a_run_would_trip_always_or_never(tmp_path: Path, expression: str) -> None:
    """A negative number and NaN are errors that name the default; 0 and what a series says are not."""
    thresholds = RULES / "thresholds.rules.yaml"
    (problem,) = check_rules([thresholds, overrides(tmp_path, f"{KL}, run: a", expression=expression)])
    assert problem.severity == "error"
    assert problem.message.startswith("approx_kl cannot be ")
    assert problem.remedy == "write a number from 0 on (the default is 5)"
    for right in ("vector(0)", "vector(+Inf)", "vector(1 - 0.5)"):
        assert check_rules([thresholds, overrides(tmp_path, f"{KL}, run: a", expression=right)]) == []


def test_an_override_of_a_threshold_below_zero(tmp_path: Path) -> None:
    """What is compared with it may be negative, so every number is right; NaN is none."""
    thresholds = tmp_path / "thresholds.rules.yaml"
    default = (RULES / "thresholds.rules.yaml").read_text()
    thresholds.write_text(default.replace("fusewire:attempt * 5\n", "fusewire:attempt * -5\n"))
    for right in ("vector(-20)", "vector(0)", "vector(3)"):
        assert check_rules([thresholds, overrides(tmp_path, f"{KL}, run: a", expression=right)]) == []
    (problem,) = check_rules([thresholds, overrides(tmp_path, f"{KL}, run: a", expression="vector(NaN)")])
    assert str(problem).endswith("approx_kl cannot be nan: nothing exceeds it; write a number (the default is -5)")


def test_an_override_that_is_no_number(tmp_path: Path) -> None:
    """A word where a number belongs is taken for a series: the remedy names the number first."""
    given = [*RULES.glob("*.rules.yaml"), overrides(tmp_path, f"{KL}, run: a", expression="lots")]
    remedies = [problem.remedy for problem in check_rules(given)]
    assert any(remedy.startswith("write the number itself, such as vector(0.8)") for remedy in remedies)


def test_an_override_without_the_pack_that_reads_it(tmp_path: Path) -> None:
    """It does nothing, and the remedy is to load the pack too."""
    (problem,) = check_rules([overrides(tmp_path, "threshold: approx_kl, run: a")])
    assert "'default' beside this file" in problem.remedy


def test_overrides_that_are_right(tmp_path: Path) -> None:
    """Of one threshold for a run and for its algorithm, for two runs, and with labels that its series bring."""
    thresholds = RULES / "thresholds.rules.yaml"
    several = [f"{KL}, run: a", f"{KL}, run: b", f"{KL}, algorithm: ppo"]
    assert check_rules([thresholds, overrides(tmp_path, *several)], runs=["a", "b"]) == []
    from_series = overrides(tmp_path, "threshold: approx_kl", expression="max by (run) (rl_updates_total)")
    assert check_rules([thresholds, from_series]) == []


@pytest.mark.parametrize(
    ("configured", "remedy"),
    [
        (["PPO (SB3)", "", "sac"], "there are PPO (SB3), sac"),
        (["Ppo"], "did you mean Ppo?"),
        ([""], "no run names its"),
    ],
)
def test_an_override_for_an_algorithm_that_no_run_has(tmp_path: Path, configured: list[str], remedy: str) -> None:
    """A warning: labels match to the letter, so PPO is not ppo."""
    files = [*sorted(RULES.glob("*.yaml")), overrides(tmp_path, "threshold: approx_kl, algorithm: ppo")]
    (problem,) = check_rules(files, algorithms=configured)
    assert problem.severity == "warning"
    assert "for the algorithm ppo, which is not configured" in problem.message
    assert problem.remedy.startswith(remedy)
    assert check_rules(files, algorithms=["ppo"]) == []


def test_an_override_for_a_run_that_is_not_configured(tmp_path: Path) -> None:
    """A warning with the nearest run; the example's run is nobody's, and without runs nothing is known."""
    files = [*sorted(RULES.glob("*.yaml")), overrides(tmp_path, "threshold: approx_kl, run: cartpol")]
    (problem,) = check_rules(files, runs=["cartpole"])
    assert problem.severity == "warning"
    assert problem.file.name == "mine.rules.yaml"
    assert problem.remedy == "did you mean cartpole?"
    assert check_rules(files) == []
