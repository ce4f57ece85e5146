"""The IoT pattern with its usual numbers, but for a device that may be silent for five minutes only."""

from headrace.patterns.iot.flows import IotSettings, flows

# A quarter of an hour is right for a plant and long for a first look.
SETTINGS = IotSettings(silence="5 minutes")

iot = flows(SETTINGS)
