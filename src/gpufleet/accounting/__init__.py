"""Who held how many GPUs when: holding periods, snapshots, hours, reports, waste."""
