"""The wording of findings: what you see, what it probably means, what to do. A language is one more table."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wording:
    """The texts of one finding.

    As templates they name the finding's values in braces; a part in [brackets] is left out where one of its values is
    undefined.
    """

    title: str
    see: str
    means: str
    do: str


@dataclass(frozen=True)
class Gap:
    """A detector that could not judge: the metric it lacked, how many points there were, how many it needs."""

    detector: str
    key: str
    found: int
    needed: int


class _Formatter(string.Formatter):
    """`str.format`, but an undefined value reads `not recorded` whatever its format."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return "not recorded" if value is None else str(super().format_field(value, format_spec))


def entry(name: str, values: Mapping[str, Any]) -> str:
    """Where a finding stands in a table: `name.reading`, or `name` where it has one reading alone."""
    return f"{name}.{values['reading']}" if "reading" in values else name


def wording(name: str, values: Mapping[str, Any], steps: Sequence[int], language: str = "en") -> Wording:
    """The texts of finding `name` with its values and steps filled in.

    A finding with several readings has `values["reading"]`, and one table entry `name.reading` for each. Raises
    KeyError for a language, name, reading or value that is not known.
    """
    table = TABLES[language]
    template = table[entry(name, values)]
    filled = {**values, "since": steps[0], "until": steps[1]}
    return Wording(*(_fill(text, filled) for text in vars(template).values()))


def _fill(template: str, values: Mapping[str, Any]) -> str:
    def part(match: re.Match[str]) -> str:
        names = [name for _, name, _, _ in string.Formatter().parse(match[1]) if name]
        return "" if any(values[name] is None for name in names) else match[1]

    return _Formatter().vformat(re.sub(r"\[(.*?)\]", part, template), (), values)


ENGLISH: dict[str, Wording] = {
    "unscored.most": Wording(
        "Hardly anything is scored",
        "{groups:.0%} of the groups had fewer than two rewards (steps {since} to {until})[; verdicts without a "
        "score mostly have the status `{status}`].",
        "The verifier gives no score, and what has none teaches nothing. `error`: it raised; `timeout`: it took too "
        "long; `gold_bad`: it cannot read the reference answer; `skipped`: the reward function returned `None`.",
        "Stop. Read the verdicts' reasons in the report's groups, then mend the verifier (your reward function, or the "
        'answers in `data`). Until it works leave `reward.on_error` at "stop".',
    ),
    "unscored.some": Wording(
        "Many answers get no reward",
        "At steps {since} to {until} answers got no reward[: up to {rollouts:.0%} of them][; {groups:.0%} of the "
        "groups had fewer than two rewards][; verdicts without a score mostly have the status `{status}`].",
        "What fails is seldom a fair sample: long or odd answers fail more often, so the baseline of every group that "
        "lost one is biased. `error`: the verifier raised; `timeout`: it took too long; `gold_bad`: it cannot read the "
        "reference answer; `skipped`: the reward function returned `None`.",
        "Read the verdicts' reasons in the report's groups. Mend the verifier (your reward function, or the answers in "
        "`data`) before you trust reward or correctness.",
    ),
    "unscored.undefined": Wording(
        "The reward is undefined",
        "At {groups:.0%} of the steps {since} to {until} the reward was recorded, but is no number.",
        "The reward function failed for whole batches, or gave values that are not finite. Such steps teach nothing.",
        "Stop, and call the reward function by hand on some answers of such a step.",
    ),
    "no_gradient.zero": Wording(
        "Nothing is trained",
        "The gradient norm was 0 at every step from {since} to {until}[, although {signal:.0%} of the groups have "
        "signal].",
        "No step moves the policy: its weights are frozen, its advantages are all 0, or the loss does not reach it.",
        "Stop. Check which weights are trained, and read what was counted and what was left out (`cupola ledger`).",
    ),
    "no_gradient.undefined": Wording(
        "The gradient is no number",
        "The gradient norm was recorded at every step from {since} to {until}, but never as a number[, although "
        "{signal:.0%} of the groups have signal].",
        "The update overflowed or divided by 0, and the weights may be ruined by it; or no step was taken at all.",
        "Stop. Start again from a checkpoint before step {since} (`model.source`), with a lower `optim.learning_rate` "
        'or with `model.dtype = "float32"`.',
    ),
    "learning.unevaluated": Wording(
        "Learning",
        "Right answers in validation went from {validation_first:.1%} to {validation_last:.1%} (steps {since} to "
        "{until}); in training {train_key} went from {train_first:.3g} to {train_last:.3g}.",
        "The policy gets better at questions that it was not trained on. Whether that is more than answering with more "
        "certainty what it could answer before, only an evaluation against the starting policy's best can tell.",
        "Go on. When it stops rising, evaluate the last checkpoint with `cupola eval`.",
    ),
    "learning.evaluated": Wording(
        "Learning",
        "Right answers in validation went from {validation_first:.1%} to {validation_last:.1%} (steps {since} to "
        "{until}); in training {train_key} went from {train_first:.3g} to {train_last:.3g}.",
        "The policy gets better at questions that it was not trained on. Whether that is more than answering with more "
        "certainty what it could answer before, the evaluation of the last checkpoint tells: {verdict}.",
        "Read that evaluation: its verdict, {verdict}, and its intervals stand in the report.",
    ),
    "flat_near_floor.any": Wording(
        "Flat near the floor",
        "{key} stood at {level:.2%} from step {since} to {until} and did not rise. Groups that can teach it: "
        "{signal:.0%}.",
        "The task is too hard for this policy, or the verifier does not recognise right answers. From rewards alone "
        "the two look the same.",
        "First read answers (`cupola groups`): is a right one among them? If so, mend the verifier "
        "(`reward.extract`, or your reward function) or the form that the prompt asks for. If not, take easier "
        "questions in `data`, raise `sampling.group_size` so that a rare success is met, or begin with a supervised "
        "start (`cupola sft`).",
    ),
    "flat_near_floor.form_learnt": Wording(
        "Flat near the floor, although the form is learnt",
        "{key} stood at {level:.2%} from step {since} to {until}, while {form_key} rose to {form_level:.3g}.",
        "Updates work, so the policy is not stuck. That not one answer counts as right points at the verifier: it may "
        "read the answer from the wrong place. Or the task is too hard and only the form is in reach.",
        "Read a few answers that keep the form (`cupola groups`) and check them by eye. Then mend the verifier "
        "(`reward.extract`, or your reward function); if the answers are truly wrong, take easier questions in `data`.",
    ),
    "flat_near_ceiling.from_start": Wording(
        "Flat near the ceiling from the start",
        "{key} began at {first:.1%} and ends at {level:.1%}. Groups that can teach more: {signal:.0%}.",
        "The questions are too easy, or the verifier accepts too much. Groups in which all are right teach nothing.",
        "Read some paid answers (`cupola groups`) and give the verifier a wrong one. If it is sound, take harder "
        "questions in `data` (or `data.options`): half right is the most informative level.",
    ),
    "flat_near_ceiling.reached": Wording(
        "Solved",
        "{key} rose from {first:.1%} and has stayed near {level:.1%} since step {since}. Groups that can teach "
        "more: {signal:.0%}.",
        "The policy has learnt what these questions can teach it.",
        "Stop here, or go on with harder questions in `data` (or `data.options`). Confirm with `cupola eval`.",
    ),
    "reward_and_length_rise.earned": Wording(
        "Answers grow, and more of them are right",
        "Reward {reward_first:.3g} to {reward_last:.3g}, mean length {length_first:.0f} to {length_last:.0f} tokens, "
        "right answers {correct_first:.1%} to {correct_last:.1%} (steps {since} to {until}).",
        "Longer answers go with more right ones, as when reasoning is learnt. A denominator per sequence also favours "
        "length in wrong answers.",
        "Watch truncation: the limit `sampling.max_tokens` is {cap}. If wrong answers grow fastest, use "
        '`objective.denominator = "constant"`.',
    ),
    "reward_and_length_rise.unearned": Wording(
        "Reward and length rise, right answers do not",
        "Reward {reward_first:.3g} to {reward_last:.3g}, mean length {length_first:.0f} to {length_last:.0f} tokens, "
        "but right answers {correct_first:.1%} to {correct_last:.1%} (steps {since} to {until}).",
        "Something other than right answers pays for words: a part of the reward that length can buy.",
        "Compare the reward's parts (`rewards/*/mean`) and read the best paid answers (`cupola groups`). Lower the "
        "`reward.weight` of the part that rose or drop it, and start again from an earlier checkpoint "
        "(`model.source`).",
    ),
    "reward_and_length_rise.unknown": Wording(
        "Reward and length rise together",
        "Reward {reward_first:.3g} to {reward_last:.3g}, mean length {length_first:.0f} to {length_last:.0f} tokens "
        "(steps {since} to {until}). Right answers were not recorded apart.",
        "Either longer reasoning finds more right answers, or length itself pays. This log cannot tell which.",
        'Record correctness as its own part (`role = "correctness"`) and validate. Until then read the best paid '
        "answers of an early and a late step.",
    ),
    "high_truncation.at_cap": Wording(
        "Many answers are cut",
        "{share:.0%} of the answers ended at the token limit (sampling.max_tokens: {cap}) since step {since}.",
        "A cut answer rarely counts as right, so the reward measures length. Either the limit is too small, or the "
        "policy does not end its answers: no end token, a missing stop string, a wrong chat template, or repetition.",
        "Read some cut answers (`cupola groups`). If they were on their way, raise `sampling.max_tokens`. If they run "
        "on after the answer, set `sampling.stop` or `sampling.stop_token_ids`, or `data.chat`. If they repeat "
        "themselves, start again from an earlier checkpoint (`model.source`) with a lower `optim.learning_rate`.",
    ),
    "high_truncation.below_cap": Wording(
        "Answers count as cut, yet none is that long",
        "{share:.0%} of the answers count as cut since step {since}, but the longest has {max_length:.0f} tokens and "
        "the limit is {cap}.",
        "Both cannot be true. Most likely answers end with a second end token that the truncation test does not know.",
        "Add every id that ends an answer to `sampling.stop_token_ids` (see the model's generation_config.json) before "
        "you believe this ratio or mask cut answers by it.",
    ),
    "train_up_eval_down.train_up": Wording(
        "Training rises, validation falls",
        "{train_key} went from {train_first:.3g} to {train_last:.3g}, while right answers in validation fell from "
        "{best:.1%} at step {best_step} to {validation_last:.1%} at step {until}.",
        "The policy learns what pays in training and loses what was asked: it memorises the training questions, or it "
        "has found a flaw of the reward that validation does not share.",
        "Keep the checkpoint of step {best_step}. Read well paid answers of late steps (`cupola groups`). Then use "
        "more or more varied questions in `data`, hold the policy nearer its start (`objective.beta` > 0), or lower "
        "`optim.learning_rate`.",
    ),
    "train_up_eval_down.train_unknown": Wording(
        "Validation falls",
        "Right answers in validation fell from {best:.1%} at step {best_step} to {validation_last:.1%} at step "
        "{until}. Training reward was not recorded.",
        "Beyond its noise the policy answers fewer held-out questions: it degrades, or it moved its answers out of the "
        "place where they are looked for.",
        "Keep the checkpoint of step {best_step}. Check late wrong answers by eye: if they are right in another form, "
        "mend the verifier (`reward.extract`, or your reward function); otherwise lower `optim.learning_rate` or raise "
        "`objective.beta`.",
    ),
    "correctness_falls.some": Wording(
        "The policy gets worse",
        "{key} fell from {best:.3g} (step {best_step}) to {last:.3g} by step {until}.",
        "The policy loses what it could do. Only where this is training, and validation holds, the questions may have "
        "become harder instead.",
        "Keep the checkpoint nearest to step {best_step}. Check late wrong answers by eye (`cupola groups`): if they "
        "are right in another form, mend the verifier (`reward.extract`, or your reward function). Otherwise start "
        "again from that checkpoint (`model.source`) with a lower `optim.learning_rate` or `objective.beta` > 0.",
    ),
    "correctness_falls.nearly_all": Wording(
        "Hardly anything is left",
        "{key} fell from {best:.3g} (step {best_step}) to {last:.3g} by step {until}.",
        "The policy has lost what it could do; groups that still differ do so in other parts of the reward. Or the "
        "verifier no longer recognises right answers.",
        "Stop. Read late answers (`cupola groups`): if they are right, mend the verifier (`reward.extract`, or your "
        "reward function). Otherwise start again from the checkpoint nearest to step {best_step} (`model.source`) with "
        "a third of the learning rate or less (`optim.learning_rate`), and weigh the other parts (`reward.weight`) "
        "less.",
    ),
    "entropy_explosion": Wording(
        "Entropy explodes",
        "Entropy rose from {first:.3g} to {last:.3g} nats per token (steps {since} to {until})[, and {progress_key} is "
        "at {progress:.3g} without a lasting rise].[ The gradient norm is {grad_norm:.3g}.]",
        "The policy comes apart into noise: steps are too large, or something pays for entropy or for unlikely tokens.",
        "Stop. Start again from a checkpoint before the rise (`model.source`) with a third of `optim.learning_rate` or "
        "less, `objective.entropy_coef` at 0 and a smaller `optim.max_grad_norm`. Check that `sampling.temperature` is "
        "1.",
    ),
    "entropy_collapse.stalled": Wording(
        "Entropy has collapsed",
        "Entropy fell from {first:.3g} to {last:.3g} nats per token (steps {since} to {until}); groups with signal: "
        "{signal:.0%}; {progress_key} no longer rises. Distinct answers per group: {distinct_answers:.2g}.[ The loss "
        "({loss:.3g}) shows nothing of it.]",
        "The policy gives the same answer every time, right or wrong. Groups of equal answers have no signal, so "
        "nothing leads out of it.",
        "Start again from a checkpoint before the fall (`model.source`) with `objective.surrogate.high` = 0.28 or a "
        "small `objective.entropy_coef` (0.001), and a lower `optim.learning_rate`. Check that `sampling.temperature` "
        "is 1.",
    ),
    "entropy_collapse.still_learning": Wording(
        "Entropy has fallen far, learning goes on",
        "Entropy fell from {first:.3g} to {last:.3g} nats per token (steps {since} to {until}); groups with signal: "
        "{signal:.0%}; {progress_key} is at {progress:.3g}.",
        "Growing certainty is part of learning. It becomes a collapse when answers no longer differ within groups.",
        "Watch the groups with signal. If they dwindle while questions are still unsolved, set "
        "`objective.surrogate.high` to 0.28 or `objective.entropy_coef` to 0.001.",
    ),
    "entropy_collapse.solved": Wording(
        "Entropy has fallen, and the questions are solved",
        "Entropy fell from {first:.3g} to {last:.3g} nats per token (steps {since} to {until}); {progress_key} is at "
        "{progress:.3g}.",
        "The policy is certain because it is right.",
        "Nothing for this task. Before you train on another one from here, expect little exploration.",
    ),
    "dead_groups_taking_over.all_right": Wording(
        "Most groups are solved",
        "{share:.0%} of the groups have equal rewards since step {since}; all right: {right:.0%}, all wrong: "
        "{wrong:.0%}. Tokens without any gradient: {wasted:.0%}. A gradient norm that rises meanwhile is the smaller "
        "average, no alarm.",
        "These questions have nothing left to teach; most of the sampling is spent on them.[ Nothing is learned: "
        "{no_signal:.0%} of the groups have signal.]",
        "Take harder questions in `data` (or `data.options`), or stop.",
    ),
    "dead_groups_taking_over.all_wrong": Wording(
        "Most groups are all wrong",
        "{share:.0%} of the groups have equal rewards since step {since}; all wrong: {wrong:.0%}, all right: "
        "{right:.0%}. Tokens without any gradient: {wasted:.0%}.[ The loss ({loss:.3g}) does not show it.]",
        "Most questions are beyond this policy, or right answers are not recognised.[ The run learns from the rest "
        "alone: {signal:.1%} of the groups.][ Nothing is learned: {no_signal:.0%} of the groups have signal.]",
        "Look for right answers among the samples (`cupola groups`); if there are any, mend the verifier "
        "(`reward.extract`, or your reward function). Otherwise take easier questions in `data` or raise "
        "`sampling.group_size` (now {group_size}). If it was better before, lower `optim.learning_rate`.",
    ),
    "dead_groups_taking_over.mixed": Wording(
        "Most groups are solved or hopeless",
        "{share:.0%} of the groups have equal rewards since step {since}; all right: {right:.0%}, all wrong: "
        "{wrong:.0%}. Tokens without any gradient: {wasted:.0%}.",
        "Some questions have nothing left to teach, and others are beyond this policy or their right answers are not "
        "recognised.[ The run learns from the rest alone: {signal:.1%} of the groups.][ Nothing is learned: "
        "{no_signal:.0%} of the groups have signal.]",
        "Look for right answers among the samples of the hopeless questions (`cupola groups`). If there are none, "
        "choose questions nearer to half right in `data`, or raise `sampling.group_size` (now {group_size}).",
    ),
    "dead_groups_taking_over.tied": Wording(
        "Rewards tie although answers differ",
        "{share:.0%} of the groups have equal rewards since step {since}, but few are all right ({right:.0%}) or all "
        "wrong ({wrong:.0%}).",
        "Parts of the reward cancel: a right answer gains as much as another part takes from it.[ Nothing is "
        "learned: {no_signal:.0%} of the groups have signal.]",
        "Change the `reward.weight` of the parts so that no sum of the others outweighs correctness.",
    ),
    "dead_groups_taking_over.improving": Wording(
        "Most groups have no signal, yet the run improves",
        "{share:.0%} of the groups have equal rewards since step {since}; all right: {right:.0%}, all wrong: "
        "{wrong:.0%}.",
        "The remaining groups still teach. The others cost their tokens.",
        "To learn faster per token choose questions nearer to half right in `data`, or raise `sampling.group_size` "
        "(now {group_size}).",
    ),
    "dead_groups_taking_over.unknown": Wording(
        "Most groups have no signal",
        "{share:.0%} of the groups have equal rewards since step {since}. Group size: {group_size}.[ The loss "
        "({loss:.3g}) does not show it.]",
        "Groups of equal rewards give no gradient.[ Nothing is learned: {no_signal:.0%} of the groups have signal.] "
        "Solved, hopeless or too small groups look alike in this number.",
        "Look at the level of right answers: near 1 take harder questions, near 0 easier ones or check the verifier; "
        "between them raise `sampling.group_size`.",
    ),
    "policy_destroyed": Wording(
        "The policy is destroyed",
        "{key} fell from {before:.3g} (step {before_step}) to {after:.3g} at step {first_step} and has not come back "
        "by step {until}. Dead groups: {dead:.0%}.[ The loss ({loss:.3g}) does not show it.]",
        "An update was too large: the policy no longer gives answers that can be paid. With every group dead there is "
        "no gradient to lead it back, so waiting does not help. Peak learning rate: {learning_rate:.3g}.",
        "Stop. Start again from a checkpoint before step {first_step} (`model.source`) with a third of the learning "
        "rate or less (`optim.learning_rate`), some `optim.warmup_steps`, and perhaps a smaller `optim.max_grad_norm`.",
    ),
    "format_up_correctness_down": Wording(
        "Form is bought with correctness",
        "{form_key} rose from {form_first:.3g} to {form_last:.3g}, while {correct_key} fell from {correct_first:.3g} "
        "to {correct_last:.3g} (steps {since} to {until}). The total reward hides this.",
        "The form is the easier part to earn, and the policy gives up right answers for it.",
        "Lower the `reward.weight` of the form part, or pay it only together with a right answer; a lower "
        "`optim.learning_rate` or `objective.beta` > 0 slows the trade. Start again "
        "from a checkpoint before the fall (`model.source`).",
    ),
    "loss_zero_benign": Wording(
        "A loss of about 0 is normal here",
        "The loss is about {loss:.1g} (steps {since} to {until}) and the gradient norm is {grad_norm:.3g}.",
        "While the policy is still the one that sampled the batch the ratio is 1, and centred advantages sum to about "
        "0: so the policy term is about 0 while its gradient is not. Further updates on the batch and a small KL term "
        "add little to it. That alone is no fault.",
        "Watch reward, validation and groups with signal; do not set `objective.beta` only to see a number.",
    ),
}

TABLES: dict[str, dict[str, Wording]] = {"en": ENGLISH}
