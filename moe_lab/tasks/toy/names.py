"""The people and things of the toy world. All are single words, so that each can be one token."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = tuple(
    first + second
    for first in words("Ma To Li Be Sa Ru Ke No Da Fi Jo Ha Ve Pi Zu Ga")
    for second in words("ra lo na mi ven rik sa do bel tan")
)
TOWNS = tuple(
    first + second for first in words("Elm Ash Oak Fern Stone") for second in words("ford wick ham dale")
)
JOBS = words("baker farmer doctor teacher sailor tailor miller potter smith painter hunter singer")
PETS = words("cat dog horse goat duck hen sheep rabbit crow pony")
COLOURS = words("red blue green yellow black white brown purple pink grey")
FOODS = words("bread cheese soup rice beans plums honey nuts fish cake")
INSTRUMENTS = words("drum flute harp violin piano horn bell guitar")
RIVERS = words("Tarn Isel Orne Lune Dove Esk Nidd Wye")
LANDS = words("coast hills forest plain desert marsh")
GOODS = words("salt wool glass silk timber wine iron paper")
SEASONS = words("spring summer autumn winter")
TOOLS = words("oven plough needle net wheel kiln hammer brush bow book lamp rope")
PLACES = words("bakery field clinic school harbour shop mill studio forge camp stage market")
FEEDS = words("hay grain meat grass seeds worms carrots oats")
BEDS = words("barn basket stable pen nest coop shed burrow")
TASTES = words("sweet salty sour bitter mild")
CLOTHES = words("boots hats coats gloves scarves sandals")
WEATHERS = words("rain wind sun fog snow storms")
