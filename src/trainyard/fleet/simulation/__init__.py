"""What a simulated cluster does that a real one does by itself: jobs end, things fail, jobs slow each other."""
