"""Pages over run folders. Producers write records; all HTML is made here."""

from cupola.dashboard.report import export

__all__ = ["export"]
