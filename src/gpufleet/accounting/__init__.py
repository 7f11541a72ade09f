"""Who held how many GPUs when: allocation periods, snapshots, hours, reports."""
