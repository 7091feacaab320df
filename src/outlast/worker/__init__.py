"""What keeps runs moving: claims, leases, attempts, the gate and the writer."""
