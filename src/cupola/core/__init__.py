"""The bottom wing: records, recipe, run folder, statistics, wording. No torch."""
