"""Words that keys and values are made of: common ones, which most tokenizers know."""


def _words(text: str) -> list[str]:
    return text.split()


NAMES = _words(
    """
    Ada Amir Anna Bela Bruno Carla Chen Clara Dario Edith Elena Emil Fatima Felix Freya Gideon
    Greta Hana Henrik Ines Ivan Jana Jonas Julia Karim Lena Leo Lucia Magnus Maria Marta Mei
    Milan Nadia Nora Omar Oskar Paula Pavel Petra Ravi Rosa Samir Sara Sofia Stefan Tariq Tessa
    Tomas Ursula Vera Viktor Wanda Yara Yusuf Zelda
    """
)

FAMILIES = _words(
    """
    Abel Baker Berger Castro Costa Dahl Diaz Fischer Fontana Garcia Haas Hansen Ivanov Jensen
    Kaya Keller Khan Kim Kovac Larsen Lehmann Lopez Mayer Mendes Meyer Moreau Moretti Nagy Novak
    Okafor Olsen Park Petrov Rahman Reyes Ricci Rossi Sato Schmidt Silva Singh Sousa Tanaka
    Torres Varga Vogel Wagner Weber Wolf Yamada Zhang Ziegler
    """
)

ANIMALS = _words(
    """
    badger beaver bison camel cheetah cobra coyote crane dolphin eagle falcon ferret fox gecko
    giraffe goose heron horse hyena ibex jackal jaguar koala lemur leopard lizard llama lynx
    magpie marten moose newt otter owl panda parrot pelican penguin puffin python rabbit raven
    salmon seal shark sparrow squid stork swan tapir tiger toucan turtle viper walrus weasel
    wolf wombat yak zebra
    """
)

THINGS = _words(
    """
    anchor apron arrow axe ball banner barrel basket bell bench blanket boat book bottle bowl
    bridge broom brush bucket button cabin candle canoe cap carpet cart chain chair chest clock
    coat coin comb compass cradle crown cup curtain desk door drum engine fan feather fence flag
    flute fork gate glove guitar hammer harp hat helmet hook jar jug kettle key kite knife
    ladder lamp lantern lens lock map mask mirror needle nest oar oven paddle pan pencil pillow
    pipe plate purse raft ring rope saddle sail saw scarf shield ship shovel sock spoon stool
    table tent ticket tower train trunk umbrella vase violin wagon wallet watch wheel whistle
    """
)

COLOURS = _words(
    """
    amber azure beige black blue bronze brown coral cream crimson cyan golden green grey indigo
    ivory lilac lime maroon mint navy ochre olive orange pink plum purple red rose ruby rust
    scarlet silver tan teal turquoise violet white yellow
    """
)

CITIES = _words(
    """
    Accra Ankara Athens Baku Berlin Bogota Boston Cairo Caracas Chicago Cordoba Dakar Delhi
    Denver Dublin Florence Geneva Hamburg Hanoi Havana Helsinki Istanbul Jakarta Kabul Karachi
    Kyoto Lagos Leeds Lima Lisbon London Lyon Madrid Malaga Manila Marseille Miami Milan Minsk
    Montreal Moscow Munich Nairobi Naples Osaka Oslo Paris Porto Prague Quito Riga Rome Santiago
    Seoul Seville Sofia Sydney Tallinn Tehran Tokyo Tunis Turin Vienna Warsaw Zagreb Zurich
    """
)

NOUNS = _words(
    """
    account address badge balance box cabinet category chapter choice class contract date desk
    entry favourite file form gift goal grade group height index invoice item job label level
    licence limit locker mark member model name note order package page parcel part partner
    passport pin place plan position prize product rank rating reference report result reward
    route seat section sector serial sign size stamp station status store symbol tag task team
    title token topic type unit value version visa vote weight zone
    """
)
