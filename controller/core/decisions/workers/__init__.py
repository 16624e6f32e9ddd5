"""Who is attached, believed, waited for and closed."""
