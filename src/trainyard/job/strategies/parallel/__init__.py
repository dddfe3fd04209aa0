"""How one step is split over devices."""
