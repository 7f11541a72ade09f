"""Read the agents of a cluster directly, where no Prometheus does it."""

from gpufleet.exporters.scraping.scraper import AgentScraper

__all__ = ["AgentScraper"]
