"""One detector a file: `detect(series, context)` gives a finding, nothing, or raises CannotJudge."""
