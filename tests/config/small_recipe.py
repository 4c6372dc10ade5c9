"""A small recipe that gives a little of everything."""

RECIPE = """\
[run]
steps = 7

[data]
task = "arithmetic"
options = {levels = [1, 2], wrong_digit = 0.5}

[[reward]]
name = "right"
kind = "exact"

[[reward]]
name = "form"
kind = "pattern"
pattern = 'a+'
weight = 0

[objective]
preset = "dr_grpo"

[objective.surrogate]
high = 0.28
"""
