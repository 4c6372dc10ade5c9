"""The wing that watches a run and says what to do. No torch."""
