# Which XGrammar, and where its source distribution is kept: for fetch.cmake and CMakeLists.txt.
set(xgrammar_version 0.2.8)
set(xgrammar_sha256 8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80)
set(xgrammar_url "https://files.pythonhosted.org/packages/03/0f/29f521535729be740779c2c98b630ef6607cf28be9b669895dd2b821ff63/xgrammar-${xgrammar_version}.tar.gz")
get_filename_component(xgrammar_archive "${CMAKE_CURRENT_LIST_DIR}/../../.cache/xgrammar-${xgrammar_version}.tar.gz" ABSOLUTE)
