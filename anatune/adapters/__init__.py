"""Other people's tuners: anatune tells them which configurations deserve a run. Imports none of their packages."""
