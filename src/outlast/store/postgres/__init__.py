"""The store on PostgreSQL, for any number of workers on any number of machines."""
