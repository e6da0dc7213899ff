"""Lenses of a module that can be imported."""

from fastshard import typed


class Person(typed.PackableSample):
    name: str
    age: int


class Name(typed.PackableSample):
    text: str


class Length(typed.PackableSample):
    n: int


def get_name(person: Person) -> Name:
    return Name(text=person.name.title())


def put_name(name: Name, person: Person) -> Person:
    return Person(name=name.text.lower(), age=person.age)


def get_length(person: Person) -> Length:
    return Length(n=len(person.name))


def bare_name(person):
    return Name(text=person.name)


length = typed.Lens(get_length)
name = typed.Lens(get_name, put_name)
NUMBER = 5
