"""The medallion with shorter triggers, and one additional rule."""

from headrace import Every
from headrace.flow.rules import Rule
from headrace.patterns.medallion.flows import RULES, MedallionSettings, flows

SETTINGS = MedallionSettings(
    silver_trigger=Every("30 seconds"),
    gold_trigger=Every("1 minute"),
    rules=(*RULES, Rule("known_country", "country IN ('DE', 'FR', 'NL', 'AT')", "warn")),
)

medallion = flows(SETTINGS)
