"""Enrichment with its usual numbers, but for the policy: purchases meet new products every minute."""

from headrace.patterns.enrichment.flows import EnrichmentSettings, flows
from headrace.sinks.delta.dimension import EveryInterval

SETTINGS = EnrichmentSettings(refresh=EveryInterval("1 minute"))

shop = flows(SETTINGS)
