"""The wing that trains: objectives, ledger, verifiers, tasks, rollouts, models and the loop."""
