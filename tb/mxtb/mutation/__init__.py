"""Mutation testing of the gate-level netlists: would the ordinary regression notice a wrong gate?"""
