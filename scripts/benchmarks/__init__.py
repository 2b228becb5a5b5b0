"""The workloads of `scripts/bench`, the processes they measure, and what becomes of the figures."""
