"""What a running engine writes down of its answers. It knows neither models nor devices."""
