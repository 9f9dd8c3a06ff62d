# Completion of tabane for fish, as 'tabane completions fish' prints it.
complete -c tabane -f -a '(tabane complete-words (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
complete -c tabane -n '__fish_seen_subcommand_from run' -a '(__fish_complete_subcommand)'
