"""The HTTP edge for people: serves the built web page."""

from gpufleet.server.dashboard.pages import PUBLIC, PUBLIC_FOLDERS, dashboard_pages

__all__ = ["PUBLIC", "PUBLIC_FOLDERS", "dashboard_pages"]
