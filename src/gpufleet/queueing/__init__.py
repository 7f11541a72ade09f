"""Decide which unit runs next, where, which units leave for it, why it waits, and when it will start.

One core for all callers: the live scheduler, the simulation and the estimates of start times drive it with their own
clock and their own events. Everything inside is an integer or a frozen value: no Kubernetes object, no I/O.
docs/queueing.md explains units, states, counts, views and the walk.
"""
