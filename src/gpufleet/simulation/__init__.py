"""Simulate a fleet over time: arrivals, run times, priorities, gangs, queues, departures and node failures."""
