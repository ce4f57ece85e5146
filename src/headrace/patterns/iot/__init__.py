"""IoT: figures and alerts per device, devices that fall silent, devices that come back."""
