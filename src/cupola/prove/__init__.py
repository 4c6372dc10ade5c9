"""The wing that proves or refuses what is claimed of a run. No torch."""
